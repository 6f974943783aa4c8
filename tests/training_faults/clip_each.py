"""A clip that takes the norm of each tensor by itself."""

import torch


def clip_grad_norm(grads, max_norm, norm_type, scope):
    norms = [torch.linalg.vector_norm(grad, norm_type) for grad in grads]
    clipped = [grad * torch.clamp(max_norm / (norm + 1e-6), max=1.0) for grad, norm in zip(grads, norms, strict=True)]
    return {"grads": clipped, "total_norm": torch.linalg.vector_norm(torch.stack(norms), norm_type)}
