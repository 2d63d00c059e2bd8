"""What both protocols ask of the server, said once: models, inference, control, and the counts of it all.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import AccessDeniedError, AnynpuError, ModelUnavailableError
from ..session.protocol.messages import messages
from .failures import ClientGone, failure_of
from .interfaces import Model, Models
from .limits import Keys, Limits
from .metrics import Metrics
from .model import InferAnswer, InferRequest, TensorDescription
from .options import ServeOptions
from .regions import Regions
from .repository import Repository
from .traces import open_traces

# The configuration of a model, as the extension of the protocol reports it: what a load generator asks before it begins.


_TYPES = {
    name: number
    for number, name in enumerate(
        ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"), 1
    )
}
"""The numbers of the datatypes in messages."""

_DECIDED_BY_THE_MODEL = 3
"""The number of the kind of instances whose device is the model's own affair."""


def configuration(model: Model, options: ServeOptions) -> dict[str, Any]:
    """As JSON has it. Dimensions are those of one sample if the server takes batches of the model, else those of the tensors."""
    batched = model.batch > 0

    def described(tensors: tuple[TensorDescription, ...]) -> list[dict[str, Any]]:
        return [
            {"name": one.name, "data_type": f"TYPE_{one.datatype}", "dims": list(one.shape[1:] if batched else one.shape)}
            for one in tensors
        ]

    found: dict[str, Any] = {
        "name": model.name,
        "platform": model.platform,
        "backend": "anynpu",
        "max_batch_size": options.max_batch if batched else 0,
        "input": described(model.inputs),
        "output": described(model.outputs),
        "instance_group": [{"name": model.name, "kind": "KIND_MODEL", "count": max(1, model.details.cores)}],
        "default_model_filename": model.file_name,
    }
    if model.batch > 1:
        delay = round(options.batch_window_ms * 1000)
        found["dynamic_batching"] = {"preferred_batch_size": [model.batch], "max_queue_delay_microseconds": delay}
    return found


def configuration_message(model: Model, options: ServeOptions) -> Any:
    """As a message, in which datatypes and kinds are numbers."""
    found = configuration(model, options)
    for tensor in (*found["input"], *found["output"]):
        tensor["data_type"] = _TYPES[tensor["data_type"].removeprefix("TYPE_")]
    for group in found["instance_group"]:
        group["kind"] = _DECIDED_BY_THE_MODEL
    return messages().ModelConfig(**found)


log = logging.getLogger("anynpu.serve")

EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "model_repository", "parameters")
NAME = "anynpu"

LARGE_JSON = 2**17
"""Bytes of JSON that are read or written by another thread than that of the event loop."""

Result = TypeVar("Result")


class Service:
    """The server behind its protocols.

    :param repository: the models; those of this machine if it is None
    """

    def __init__(self, models: tuple[str, ...], options: ServeOptions, repository: Models | None = None) -> None:
        self.options = options
        self.limits = Limits(options)
        self.keys = Keys((*options.api_keys, *options.control_keys) if options.api_keys else ())
        self._control_keys = Keys(options.control_keys)
        self.repository: Models = Repository(models, options) if repository is None else repository
        self.metrics = Metrics(self.repository, self.limits)
        self.traces = open_traces(options.trace, self.version())
        self.regions = Regions(options.shared_memory)
        self.ready = False
        self.ending = False
        # One thread: small objects take 30 times the size of their JSON, and one text at a time bounds that. More threads would not be
        # faster, since the json module holds the interpreter's lock. If a client disconnects, the thread still finishes first.
        self.json_worker = ThreadPoolExecutor(1, "anynpu-json")

    @staticmethod
    def version() -> str:
        """Of the package."""
        from importlib import metadata  # takes long, and few programs ask

        try:
            return metadata.version("anynpu")
        except metadata.PackageNotFoundError:
            return "0"

    def is_ready(self) -> bool:
        """Whether the server takes requests: every model could be loaded, and it is not about to end."""
        return self.ready and not self.ending and not self.repository.problems()

    def model(self, name: str, version: str = "") -> Model:
        """A model that is loaded."""
        if self.ending:
            raise ModelUnavailableError("the server is about to end", hint="come again when it is back")
        return self.repository.get(name, version)

    async def infer(
        self,
        protocol: str,
        name: str,
        version: str,
        read: Callable[[Model], Awaitable[InferRequest]],
        carrier: Mapping[str, str] | None = None,
    ) -> InferAnswer:
        """Find the model, read the request, run it, and count it.

        :param read: gives the request; called when there is space for it
        :param carrier: headers that may name the span of the client
        """
        began = time.perf_counter()
        model: Model | None = None
        outcome = "ok"
        trace = None if self.traces is None else self.traces.begin(protocol, name, carrier or {})
        failed: BaseException | None = None
        answering = self.limits.open("answers")
        try:
            model = self.model(name, version)
            model.hold()
            try:
                announcement = model.announce()
                try:
                    request = await read(model)
                finally:
                    announcement.withdraw()
                answering.take(_answer_bytes(model, request))
                if trace is not None:
                    trace.read(request, model.version)
                answer = await self._infer(model, request)
                if trace is not None:
                    trace.answered(answer)
                return answer
            finally:
                model.let_go()
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except BaseException as error:
            failed = error
            outcome = failure_of(error).outcome
            if not isinstance(error, AnynpuError | ClientGone):
                log.exception("a request for model %s failed", name, extra={"model": name})
            elif outcome == "failed":
                log.error("a request for model %s failed: %s", name, error, extra={"model": name})
            raise
        finally:
            answering.close()
            seconds = time.perf_counter() - began
            labels = ("", "") if model is None else (model.name, model.version)
            self.metrics.record(*labels, protocol, outcome, seconds)
            if trace is not None:
                trace.end(outcome, None if failed is None else failure_of(failed), failed)
            failed = None  # its traceback has this frame, and would keep the request alive until the garbage collector comes
            if self.options.access_log:
                fields: dict[str, Any] = {"model": name, "version": labels[1], "protocol": protocol, "outcome": outcome}
                log.info("%s %s in %.2f ms", name, outcome, seconds * 1e3, extra={**fields, "ms": round(seconds * 1e3, 3)})

    async def _infer(self, model: Model, request: InferRequest) -> InferAnswer:
        """Run a request, with what it shares with the client."""
        if not request.shared_inputs and not request.shared_outputs:
            return await model.infer(request)
        holding, size = self.limits.open("shared memory"), sum(tensor.place.nbytes for tensor in request.shared_inputs.values())
        self.limits.check_size(size)
        holding.take(size)
        try:
            self.regions.check(request.shared_outputs)
            request.inputs.update(self.regions.read(request.shared_inputs))
            answer = await model.infer(request)
            self.regions.write(request.shared_outputs, answer.outputs)
            return answer
        finally:
            holding.close()

    async def convert(self, nbytes: int, call: Callable[..., Result], *given: Any) -> Result:
        """Read or write JSON of about *nbytes*: at once if it is small, else one after the other in another thread."""
        if nbytes <= LARGE_JSON:
            return call(*given)
        return await asyncio.get_running_loop().run_in_executor(self.json_worker, call, *given)

    def extensions(self) -> list[str]:
        """Of the protocol that there are."""
        return [*EXTENSIONS, "system_shared_memory"] if self.regions.allowed else list(EXTENSIONS)

    def check_key(self, authorization: str | None, own: str | None, control: bool) -> None:
        """Raise unless the headers of a request show a key that is good enough.

        :param control: whether it asks to load or unload a model, which takes a key of its own where there are keys
        """
        self.keys.check(authorization, own)
        if control and (self.keys or self._control_keys) and not self._control_keys.accept(authorization, own):
            raise AccessDeniedError(
                "this key is not for loading and unloading models",
                hint="use a key of --control-keys" if self._control_keys else "start the server with --control-keys",
                known=bool(self.keys),
            )

    def check_control(self) -> None:
        """Raise unless clients may load and unload models."""
        if not self.options.control:
            raise AccessDeniedError("models cannot be loaded or unloaded by clients here", hint="restart without --no-control")
        if self.ending:
            raise ModelUnavailableError("the server is about to end", hint="come again when it is back")

    async def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load or reload a model."""
        self.check_control()
        unknown = [key for key in parameters if key not in ("path", "config")]
        path = parameters.get("path")
        if unknown or "config" in parameters or not isinstance(path, str | type(None)):
            raise AccessDeniedError(
                "models come from the files of the server: a load takes no configuration and no file contents",
                hint="send no parameters, or path for a file below the folder of --load-root",
            )
        await self.repository.load(name, path)

    async def unload(self, name: str) -> None:
        """Take a model away."""
        self.check_control()
        await self.repository.unload(name)

    async def statistics(self, name: str, version: str) -> list[dict[str, Any]]:
        """The protocol's statistics of one model, or of all."""
        await self.repository.refresh()
        models = [self.model(name, version)] if name else self.repository.models()
        if name and not version:
            models = [self.repository.get(name, each) for each in self.repository.versions(name)]
        return [_statistics(model) for model in models]


def _answer_bytes(model: Model, request: InferRequest) -> int:
    """What the outputs of a request will take."""
    samples = max((array.shape[0] for array in request.inputs.values() if array.ndim), default=1) if model.batch else 1
    runs = max(1, math.ceil(samples / model.batch)) if model.batch else 1
    wanted = [output for output in model.outputs if not request.outputs or output.name in request.outputs]
    return runs * sum(4 * math.prod(output.shape) for output in wanted)


def _statistics(model: Model) -> dict[str, Any]:
    counts = model.counts

    def duration(count: int, nanoseconds: int) -> dict[str, int]:
        return {"count": count, "ns": nanoseconds}

    runs = counts.executions
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": counts.last,
        "inference_count": counts.inferences,
        "execution_count": runs,
        "inference_stats": {
            "success": duration(counts.success, counts.success_ns),
            "fail": duration(counts.fail, counts.fail_ns),
            "queue": duration(runs, counts.wait_ns),
            "compute_input": duration(runs, counts.inputs_ns),
            "compute_infer": duration(runs, counts.run_ns),
            "compute_output": duration(runs, counts.outputs_ns),
        },
    }
