"""Models whose time is asked for: ONNX, complete or with its weights stripped, or compiled."""

from __future__ import annotations

from pathlib import Path

from ... import modelfile
from ...chips import Chip
from ...errors import CompileError, ModelFormatError
from ...modelfile import FileKind, identify
from ...modelfile.recognize import name_content, open_source
from ...program import Model, Program

_WORDS = {"w8a8": "int8", "w16a16": "int16"}


def no_model(path: Path, hint: str) -> ModelFormatError:
    """The error for a file that holds no model: it names what the file is, if that is known.

    :param hint: what to give instead
    """
    other = name_content(open_source(path).data)
    if other is not None:
        return ModelFormatError(f"{path} is {other[0]}, not a model", hint=other[1])
    return ModelFormatError(f"{path} is not a model that is known here", hint=hint)


class TimedModel:
    """A model file, opened where a prediction needs it.

    :ivar compiled: the compiled model, if the file is one
    """

    def __init__(self, path: Path, *, shapes: dict[str, tuple[int, ...]] | None = None, batch: int | None = None) -> None:
        self.path = path
        self.compiled: Model | None = None
        if not path.is_file():
            raise ModelFormatError(f"there is no file {path}", hint="check the path of the model")
        kind = identify(path)
        if kind is FileKind.ANYNPU or kind.of_a_vendor:
            if shapes or batch:
                raise CompileError(f"{path.name} is compiled: its shapes are fixed", hint="give the ONNX model to change them")
            self.compiled = modelfile.read_or_twin(path)
        elif kind is FileKind.ONNX or path.suffix.lower() in (".onnx", ".tflite"):
            from ...compiler import ModelOutline

            self._outline = ModelOutline(path, shapes=shapes, batch=batch)
        else:
            raise no_model(path, "give an .onnx, .rknn or .anynpu file")

    def dtype(self, wanted: str | None) -> str:
        """The type to predict: what is *wanted*, the compiled model's own, or int8."""
        if self.compiled is None:
            return wanted or "w8a8"
        if wanted not in (None, self.compiled.dtype):
            raise CompileError(
                f"{self.path.name} is compiled to {_WORDS.get(self.compiled.dtype, self.compiled.dtype)}",
                hint="give the ONNX model to choose another type",
            )
        return self.compiled.dtype

    def program(self, chip: Chip, dtype: str) -> Program:
        """The program on a chip. That of a compiled model has its layers where its own chip has them."""
        if self.compiled is not None:
            return self.compiled.programs[0]
        return self._outline.program(chip, dtype=dtype)
