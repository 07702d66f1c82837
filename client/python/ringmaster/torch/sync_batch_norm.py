"""Batch normalization over the batches of all ranks, on any device."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._basics import Sum, size
from .mpi_ops import allgather_async, allreduce_async, synchronize


def _dimensions(tensor: torch.Tensor) -> list:
    """All but the channels'."""
    return [0, *range(2, tensor.dim())]


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.reshape([1, -1] + [1] * (like.dim() - 2))


class _SyncBatchNorm(torch.autograd.Function):
    """Computes in float32 at least. What travels is one tensor each way: mean, variance and count of a rank; two sums of a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, eps: float, momentum: float) -> Any:  # fmt: skip
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count, channels = x.numel() // max(1, x.shape[1]), x.shape[1]
        if count:
            var, mean = torch.var_mean(wide, _dimensions(x), unbiased=False)
        else:
            var = mean = wide.new_zeros(channels)
        mine = torch.cat([mean, var, wide.new_tensor([count])]).unsqueeze(0)
        everyone = synchronize(allgather_async(mine, "sync_batch_norm.statistics"))
        means, variances, counts = everyone[:, :channels], everyone[:, channels:-1], everyone[:, -1:]
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        if running_mean is not None:
            unbiased = var * (total / (total - 1).clamp(min=1))
            running_mean.mul_(1 - momentum).add_(mean.to(running_mean.dtype), alpha=momentum)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, scale, total)
        out = (wide - _per_channel(mean, x)) * _per_channel(scale, x)
        if weight is not None:
            out = out * _per_channel(weight.to(wide.dtype), x) + _per_channel(bias.to(wide.dtype), x)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight, mean, scale, total = ctx.saved_tensors
        wide = gradient.to(mean.dtype)
        normal = (x.to(mean.dtype) - _per_channel(mean, x)) * _per_channel(scale, x)
        sums = torch.stack([wide.sum(_dimensions(x)), (wide * normal).sum(_dimensions(x))])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            all_sums = synchronize(allreduce_async(sums, op=Sum, name="sync_batch_norm.gradient")) / total
            factor = scale if weight is None else scale * weight.to(scale.dtype)
            grad_x = (wide - _per_channel(all_sums[0], x) - normal * _per_channel(all_sums[1], x)) * _per_channel(factor, x)
            grad_x = grad_x.to(x.dtype)
        if weight is not None:  # of this rank: the optimizer reduces them as any other
            grad_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
            grad_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of inputs (N, C, ...) with mean and variance over the batches of all ranks.

    Every rank has to run it the same number of times. Arguments are those of torch.nn.BatchNorm2d.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        batch_statistics = self.training or not self.track_running_stats
        if not batch_statistics or size() == 1:
            return super().forward(input)
        momentum, tracked = self.momentum, self.training and self.track_running_stats
        if tracked:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        mean, var = (self.running_mean, self.running_var) if tracked else (None, None)
        return _SyncBatchNorm.apply(input, self.weight, self.bias, mean, var, self.eps, momentum or 0.0)
