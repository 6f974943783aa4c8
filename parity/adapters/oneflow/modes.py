"""OneFlow's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job, named_outputs
from parity.adapters.modes import AutocastMode, check_traceable
from parity.adapters.oneflow.adapter import OneflowAdapter


class OneflowGraph(OneflowAdapter):
    """Each op in an `oneflow.nn.Graph`, and its gradients in a second one."""

    no_kernel = (*OneflowAdapter.no_kernel, r"InferDataType Failed\. Expected kDouble, but got kFloat")

    def run(self, job: Job) -> dict[str, Any]:
        check_traceable(job, "oneflow.nn.Graph")
        try:
            return super().run(job)
        except BaseException:
            # OneFlow 0.9.0 aborts in the first graph that is built after a failed one.
            self.worn_out = True
            raise

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        flow = self.framework

        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if flow.is_tensor(value)}
            params = {name: value for name, value in given.items() if name not in tensors}
            leaves = [name for name, value in tensors.items() if value.requires_grad]
            kept = {name: value for name, value in tensors.items() if name not in leaves}
            names: list[str] = []
            written: dict[str, Any] = {}

            def outputs(graph: Any, values: Any) -> Any:
                held = {name: getattr(graph.module, f"kept_{name}") for name in kept}
                results = named_outputs(function(**dict(zip(leaves, values)), **held, **params))
                names[:] = results
                # A tensor that the op has changed in place is in the buffer after the graph has run.
                written.update({out: name for out, y in results.items() for name, was in held.items() if y is was})
                return tuple(results.values())

            def backward(graph: Any, *values: Any) -> Any:
                inputs = [value.requires_grad_() for value in values[: len(leaves)]]
                pairs = zip(outputs(graph, inputs), values[len(leaves) :])
                sum((y * dy).sum() for y, dy in pairs if y.requires_grad).backward()
                return tuple(value.grad for value in inputs)

            def computed(*values: Any) -> Any:
                graph = graph_of(flow, lambda graph, *values: outputs(graph, values), kept)
                results = graph(*values)
                # A graph that is deleted while it computes ends the process; reading a result waits for the graph.
                for y in results:
                    y.numpy()
                held = graph.module.to(flow.nn.Module)
                return tuple(
                    getattr(held, f"kept_{written[name]}") if name in written else y for name, y in zip(names, results)
                )

            def run_forward(context: Any, *values: Any) -> Any:
                context.save_for_backward(*values)
                return computed(*values)

            def run_backward(context: Any, *grad_outputs: Any) -> Any:
                graph = graph_of(flow, backward, kept)
                graph.add_optimizer(flow.optim.SGD([graph.module.unused], lr=0.0))
                with flow.enable_grad():
                    gradients = graph(*(value.detach() for value in context.saved_tensors), *grad_outputs)
                return tuple(flow.tensor(gradient.numpy()) for gradient in gradients)

            steps = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
            function_of: Any = type("InGraph", (flow.autograd.Function,), steps)
            results = function_of.apply(*map(tensors.get, leaves)) if leaves else computed()
            return dict(zip(names, [results] if flow.is_tensor(results) else results))

        return call


def graph_of(flow: Any, build: Callable[..., Any], kept: Any) -> Any:
    """The graph of `build`, whose module has copies of the tensors `kept` as buffers."""
    module = flow.nn.Module()
    module.unused = flow.nn.Parameter(flow.zeros(1))
    for name, tensor in kept.items():
        module.register_buffer(f"kept_{name}", tensor.clone())
    graph = type("OpGraph", (flow.nn.Graph,), {"build": build})()
    graph.module = module
    return graph


class OneflowAmp(AutocastMode, OneflowAdapter):
    """`oneflow.autocast` to bfloat16."""

    def autocast(self) -> Any:
        return self.framework.autocast(self.device, self.framework.bfloat16)
