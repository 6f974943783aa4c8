"""A warm-up whose first step is not at the start: it counts from 1, the decay behind it from 0."""


def learning_rate(step, lr, name, warmup_steps, total_iters, start_factor, power, end_lr):
    done = step - 1
    if done < warmup_steps:
        return lr * (start_factor + (1 - start_factor) * (done + 1) / warmup_steps)
    left = 1 - min(done - warmup_steps, total_iters - warmup_steps) / (total_iters - warmup_steps)
    return (lr - end_lr) * left**power + end_lr
