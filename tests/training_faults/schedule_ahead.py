"""A schedule that is one step ahead."""


def learning_rate(step, lr, name, warmup_steps, total_iters, start_factor, power, end_lr):
    done = step
    if done < warmup_steps:
        return lr * (start_factor + (1 - start_factor) * done / warmup_steps)
    left = 1 - min(done - warmup_steps, total_iters - warmup_steps) / (total_iters - warmup_steps)
    return (lr - end_lr) * left**power + end_lr
