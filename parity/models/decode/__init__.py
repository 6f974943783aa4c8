"""Cases of `kind: decode`: an autoregressive model, run in several ways that must give the same."""
