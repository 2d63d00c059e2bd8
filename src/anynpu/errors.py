"""All errors of anynpu, as one tree.

Every error carries what a caller can act on: ``code`` (the vendor's number, if a vendor's call is behind it), ``call`` (the call that
failed) and ``hint`` (what to do next). Each leaf is also the builtin exception that fits, so ``except ValueError`` works.

::

    AnynpuError
    |-- ModelError                  a model cannot be used
    |   |-- ModelFormatError        the file is damaged or not a model               (ValueError)
    |   |-- ModelVersionError       written by another version of anynpu             (ValueError)
    |   |-- VendorModelError        only the vendor's runtime can execute it         (RuntimeError)
    |   |-- ModelFileError          there is no such file, or it cannot be read       (OSError)
    |   |-- OutputFileError         a file cannot be written                         (OSError)
    |   |-- ToolkitError            the vendor's toolkit is missing or failed        (RuntimeError)
    |   `-- CompileError            ONNX that cannot become a layer program          (ValueError)
    |       |-- UnsupportedOperatorError   no way to run an operator                 (NotImplementedError)
    |       |-- CompileOptionError  an option is unknown or of a wrong type           (TypeError)
    |       `-- CalibrationError    the calibration data does not fit or is empty    (ValueError)
    |-- InputError                  the caller's data does not fit the model
    |   |-- ShapeError              (ValueError)
    |   |-- TensorTypeError         (TypeError)
    |   |-- TensorNameError         (KeyError)
    |   |-- ParameterError          a call's parameters do not fit                   (ValueError)
    |   `-- ImageError              an image cannot be read                         (ValueError)
    |-- DeviceError                 the device rejects or fails
    |   |-- UnknownChipError        (ValueError)
    |   |-- UnsupportedCall         this chip does not have the call                 (NotImplementedError)
    |   |-- DeviceMemoryError       a buffer is missing, too small or not available  (MemoryError, RuntimeError)
    |   |-- DeviceTimeout           (TimeoutError)
    |   |-- CustomOperatorError     a function of the user failed in the middle      (RuntimeError)
    |   |-- DeviceHungError         a job never came back; its context was given up  (TimeoutError, RuntimeError)
    |   |-- JobCancelled            (RuntimeError)
    |   |-- CommandStreamError      a command stream cannot be executed              (ValueError)
    |   |-- DeviceClosed            (RuntimeError)
    |   |-- DeviceResultError       the NPU gave other bytes than the CPU, or none     (RuntimeError)
    |   |-- DeviceUnavailable       no NPU, no driver or no vendor's library         (RuntimeError)
    |   `-- CallFailed              a vendor's call failed without saying why        (RuntimeError)
    |-- SessionError                a session cannot do what it was asked            (RuntimeError)
    |   |-- OptionError             an option is unknown, out of range or in conflict  (ValueError)
    |   |   `-- OptionTypeError     an option is unknown or of a wrong type           (TypeError)
    |   |-- CallbackError           what should be called cannot be called           (TypeError)
    |   |-- SubmitTimeout           no space in the queue in time                     (TimeoutError)
    |   |-- SessionModelError       the model of a session cannot be read            (ModelError)
    |   `-- FeedError               the input feed of a session                      (InputError)
    |       |-- FeedShapeError      (ShapeError)
    |       |-- FeedTypeError       (TensorTypeError)
    |       `-- FeedNameError       (TensorNameError)
    |-- ServeError                  a server rejects a request                       (RuntimeError)
    |   |-- RequestError            the request is malformed                         (ValueError)
    |   |   `-- RequestTooLargeError   it is larger than the server allows
    |   |-- UnknownModelError       the server has no such model or version          (LookupError)
    |   |-- ModelUnavailableError   the model is not loaded, or the server is shutting down
    |   |   `-- BoardLostError      the board that had the request is gone
    |   |-- OverloadedError         there is more to do than can be done in time
    |   `-- AccessDeniedError       the key is missing or wrong, or the call is not allowed  (PermissionError)
    |-- SanitizerError              the sanitizer found something in the program     (RuntimeError)
    `-- MissingDependencyError      an optional package is not installed             (ImportError)

>>> error = ShapeError("input 'x' takes [1, 3, 8, 8], got [1, 8, 8, 3]", hint="pass layout='nhwc'")
>>> print(error)
input 'x' takes [1, 3, 8, 8], got [1, 8, 8, 3]
  hint: pass layout='nhwc'
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AccessDeniedError",
    "AnynpuError",
    "BoardLostError",
    "CalibrationError",
    "CallFailed",
    "CallbackError",
    "CommandStreamError",
    "CompileError",
    "CompileOptionError",
    "CustomOperatorError",
    "DeviceClosed",
    "DeviceError",
    "DeviceHungError",
    "DeviceMemoryError",
    "DeviceResultError",
    "DeviceTimeout",
    "DeviceUnavailable",
    "FeedError",
    "FeedNameError",
    "FeedShapeError",
    "FeedTypeError",
    "ImageError",
    "InputError",
    "JobCancelled",
    "MissingDependencyError",
    "ModelError",
    "ModelFileError",
    "ModelFormatError",
    "ModelUnavailableError",
    "ModelVersionError",
    "OptionError",
    "OptionTypeError",
    "OutputFileError",
    "OverloadedError",
    "ParameterError",
    "PreprocessingWarning",
    "RequestError",
    "RequestTooLargeError",
    "SanitizerError",
    "ServeError",
    "SessionError",
    "SessionModelError",
    "ShapeError",
    "SubmitTimeout",
    "TensorNameError",
    "TensorTypeError",
    "ToolkitError",
    "UnknownChipError",
    "UnknownModelError",
    "UnsupportedCall",
    "UnsupportedOperatorError",
    "VendorModelError",
]


class AnynpuError(Exception):
    """The root: everything that anynpu raises on purpose.

    :param message: what is wrong, with the names and numbers involved
    :param hint: what the caller can do about it
    :param code: the vendor's error number, where a vendor's call is involved
    :param call: the call that failed
    :param code_name: the vendor's name for the number
    """

    def __init__(self, message: str, *, hint: str = "", code: int | None = None, call: str = "", code_name: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.call = call
        self.code_name = code_name

    def __str__(self) -> str:
        call = "" if self.call and self.call in self.message else self.call
        where = ", ".join(filter(None, (call, self.code_name, "" if self.code is None else str(self.code))))
        text = f"{self.message} ({where})" if where else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    @property
    def one_line(self) -> str:
        """The message with its hint on one line, for logs."""
        return str(self).replace("\n  hint: ", "; ")


class ModelError(AnynpuError):
    """A model cannot be used."""


class ModelFormatError(ModelError, ValueError):
    """The file is damaged, truncated or not a model at all."""


class ModelVersionError(ModelError, ValueError):
    """The file was written by a version of anynpu whose files this one does not read."""


class VendorModelError(ModelError, RuntimeError):
    """The file was compiled by a vendor's tool; only the vendor's runtime can execute it."""


class ToolkitError(ModelError, RuntimeError):
    """The vendor's toolkit is missing, failed or took too long.

    :param lines: the last lines that it printed
    """

    def __init__(self, message: str, *, hint: str = "", code: int | None = None, lines: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint, code=code)
        self.lines = tuple(lines)


class ModelFileError(ModelError, OSError):
    """There is no such file, or it cannot be read."""


class OutputFileError(ModelError, OSError):
    """A file cannot be written: it is an input, not a regular file, or the disk rejects it."""


class CompileError(ModelError, ValueError):
    """The ONNX model cannot become a layer program.

    ``node``, ``operator`` and ``tensor`` state where, where that is known.
    """

    def __init__(
        self, message: str, *, node: str = "", operator: str = "", tensor: str = "", hint: str = "", call: str = ""
    ) -> None:
        super().__init__(message, hint=hint, call=call)
        self.node = node
        self.operator = operator
        self.tensor = tensor

    def __str__(self) -> str:
        where = ", ".join(
            f"{label} {value!r}"
            for label, value in (("node", self.node), ("operator", self.operator), ("tensor", self.tensor))
            if value
        )
        text = f"{self.message} [{where}]" if where else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class UnsupportedOperatorError(CompileError, NotImplementedError):
    """There is no way to run an operator of the model."""


class CompileOptionError(CompileError, TypeError):
    """An option of the compiler is unknown, or its value has a type that it does not take."""


class CalibrationError(CompileError):
    """The calibration data is empty, unreadable or does not fit the model."""


class InputError(AnynpuError):
    """The caller's data does not fit the model."""


class ShapeError(InputError, ValueError):
    """An array has another shape than the tensor it is meant for."""


class TensorTypeError(InputError, TypeError):
    """An array has a type that the tensor does not accept."""


class TensorNameError(InputError, KeyError):
    """There is no tensor of that name."""

    __str__ = AnynpuError.__str__  # KeyError would print the repr


class TensorIndexError(TensorNameError, IndexError):
    """There is no input or output of that number."""


class ParameterError(InputError, ValueError):
    """The parameters of a call do not fit the call, the model or each other."""


class ImageError(InputError, ValueError):
    """An image cannot be read."""


class DeviceError(AnynpuError):
    """The device rejects or fails."""


class UnknownChipError(DeviceError, ValueError):
    """The chip is not in the catalogue."""


class UnsupportedCall(DeviceError, NotImplementedError):
    """This chip does not have the call or the query."""


class DeviceMemoryError(DeviceError, MemoryError, RuntimeError):
    """A device buffer is missing, too small or not available."""


class DeviceTimeout(DeviceError, TimeoutError):
    """A job did not get its core, or did not finish, in time."""


class CustomOperatorError(DeviceError, RuntimeError):
    """What the user registered for a custom operator failed; where it raised an exception, that is the cause."""


class DeviceHungError(DeviceError, TimeoutError, RuntimeError):
    """A job did not come back from the device; its context was given up and a new one took its place."""


class JobCancelled(DeviceError, RuntimeError):
    """A job was cancelled."""


class CommandStreamError(DeviceError, ValueError):
    """A command stream is damaged, or asks for what is not known of the chip."""


class DeviceClosed(DeviceError, RuntimeError):
    """The device, model or context was closed."""


class DeviceResultError(DeviceError, RuntimeError):
    """The NPU gave other bytes than the CPU, or none at all."""


class DeviceUnavailable(DeviceError, RuntimeError):
    """There is no NPU, its driver does not answer, or the vendor's library cannot be loaded."""


class CallFailed(DeviceError, RuntimeError):
    """A vendor's call failed and gave no reason that another class stands for."""


class SessionError(AnynpuError, RuntimeError):
    """A session cannot do what it was asked."""


class OptionError(SessionError, ValueError):
    """An option of a session is unknown, out of range or in conflict with another."""


class OptionTypeError(OptionError, TypeError):
    """An option is unknown, or its value has a type that it does not take."""


class CallbackError(SessionError, TypeError):
    """What a session should call when a request is finished cannot be called."""


class SubmitTimeout(SessionError, TimeoutError):
    """There was no space in the queue of a session in time."""


class SessionModelError(SessionError, ModelError):
    """The model of a session cannot be read."""


class FeedError(SessionError, InputError):
    """The input feed of a session does not fit the model."""


class FeedShapeError(FeedError, ShapeError):
    """An array of the input feed has another shape than the input."""


class FeedTypeError(FeedError, TensorTypeError):
    """An array of the input feed has a type that the input does not take."""


class FeedNameError(FeedError, TensorNameError):
    """There is no input or output of that name."""

    __str__ = AnynpuError.__str__  # KeyError would print the repr


class SanitizerError(AnynpuError, RuntimeError):
    """The sanitizer found something that the program does wrong."""


class ServeError(AnynpuError, RuntimeError):
    """A server rejects a request."""


class RequestError(ServeError, ValueError):
    """The request is malformed."""


class RequestTooLargeError(RequestError):
    """The request, or a tensor in it, is larger than the server allows."""


class UnknownModelError(ServeError, LookupError):
    """The server has no model or version of that name."""


class ModelUnavailableError(ServeError):
    """The model is not loaded, or the server is about to end."""


class BoardLostError(ModelUnavailableError):
    """The board of a cluster that had the request is gone, or there is none for it."""


class OverloadedError(ServeError):
    """The server has more to do than it can do in time; ``retry_after`` states after how many seconds to come again."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 1.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class AccessDeniedError(ServeError, PermissionError):
    """The API key is missing or wrong (``known`` is false), or the call is not allowed on this server."""

    def __init__(self, message: str, *, hint: str = "", known: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.known = known

    __str__ = AnynpuError.__str__  # PermissionError would print a tuple


class MissingDependencyError(AnynpuError, ImportError):
    """An optional package is not installed.

    >>> print(MissingDependencyError.for_extra("onnx", "sim"))
    this needs the package 'onnx', which is not installed
      hint: in a clone of anynpu: pip install '.[sim]'
    """

    @classmethod
    def for_extra(cls, package: str, extra: str) -> MissingDependencyError:
        """The error for a missing *package* that belongs to the optional *extra*."""
        return cls(
            f"this needs the package '{package}', which is not installed", hint=f"in a clone of anynpu: pip install '.[{extra}]'"
        )


class PreprocessingWarning(UserWarning):
    """A warning of :func:`anynpu.compile`: mean, std, channel order or calibration images that do not fit the network.

    :ivar flags_text: the message with options of the command line

    >>> import warnings
    >>> warnings.simplefilter("error", PreprocessingWarning)    # doctest: +SKIP
    """

    def __init__(self, message: str, flags_text: str = "") -> None:
        super().__init__(message)
        self.flags_text = flags_text or message
