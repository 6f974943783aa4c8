"""What rules of correctness let pass: cheats, honest mistakes and right candidates, and the rules of others."""
