"""Calibration data from every kind of source, and the messages where it does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anynpu.compiler.images import load_image
from anynpu.compiler.quantize.dataset import InputInfo, open_dataset
from anynpu.errors import CalibrationError, ImageError
from anynpu.program import Preprocess

FLOAT = np.dtype("float32")
HEIGHT, WIDTH = 6, 8
PLAIN = InputInfo("x", (1, 3, HEIGHT, WIDTH), FLOAT)
GREY = InputInfo("x", (1, 1, HEIGHT, WIDTH), FLOAT)
NORMALISED = InputInfo("x", (1, 3, HEIGHT, WIDTH), FLOAT, Preprocess((10.0, 20.0, 30.0), (2.0, 4.0, 5.0)))
PAIR = (PLAIN, InputInfo("y", (1, 4), FLOAT))


def picture(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def write(path: Path, rgb: np.ndarray[Any, Any]) -> Path:
    assert cv2.imwrite(str(path), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    return path


def nchw(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return rgb.astype(np.float32).transpose(2, 0, 1)[None]


def only(source: Any, *inputs: InputInfo, name: str = "x") -> np.ndarray[Any, Any]:
    (sample,) = open_dataset(source, inputs or (PLAIN,))
    return sample[name]


def failure(source: Any, *inputs: InputInfo) -> CalibrationError:
    with pytest.raises(CalibrationError) as caught:
        list(open_dataset(source, inputs or (PLAIN,)))
    assert caught.value.hint
    return caught.value


class TestFolders:
    def test_images_in_the_order_of_their_names_and_not_below(self, tmp_path: Path) -> None:
        for name, seed in (("b.png", 1), ("a.BMP", 0), ("c.png", 2), (".hidden.png", 3)):
            write(tmp_path / name, picture(seed))
        (tmp_path / "below").mkdir()
        write(tmp_path / "below" / "d.png", picture(4))
        (tmp_path / "notes.txt").write_text("not an image")
        dataset = open_dataset(tmp_path, (PLAIN,))
        assert len(dataset) == 3
        assert "3 samples" in dataset.description
        assert str(tmp_path) in dataset.description
        for seed, sample in enumerate(dataset):
            np.testing.assert_array_equal(sample["x"], nchw(picture(seed)))
            assert sample["x"].dtype == np.float32
            assert sample["x"].flags.c_contiguous

    def test_limit(self, tmp_path: Path) -> None:
        for seed in range(4):
            write(tmp_path / f"{seed}.png", picture(seed))
        dataset = open_dataset(str(tmp_path), (PLAIN,), limit=2)
        samples = list(dataset)
        assert len(dataset) == len(samples) == 2
        np.testing.assert_array_equal(samples[1]["x"], nchw(picture(1)))

    def test_folder_of_arrays(self, tmp_path: Path) -> None:
        np.save(tmp_path / "1.npy", picture(1))
        np.save(tmp_path / "2.npy", np.stack([picture(2), picture(3)]))
        dataset = open_dataset(tmp_path, (PLAIN,))
        assert len(dataset) == len(list(dataset)) == 3

    def test_without_images(self, tmp_path: Path) -> None:
        assert "it is empty" in str(failure(tmp_path))
        (tmp_path / "notes.txt").write_text("")
        error = failure(tmp_path)
        assert str(tmp_path) in error.message
        assert ".jpg" in error.message
        assert ".png" in error.message

    def test_several_inputs_need_another_source(self, tmp_path: Path) -> None:
        write(tmp_path / "a.png", picture(0))
        error = failure(tmp_path, *PAIR)
        assert "1 value for 2 inputs" in error.message
        assert "'y'" in error.hint

    @pytest.mark.parametrize("shape", [(1, 4), (1, 2, HEIGHT, WIDTH), (1, HEIGHT, WIDTH, 3)])
    def test_inputs_that_take_no_images(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        write(tmp_path / "a.png", picture(0))
        error = failure(tmp_path, InputInfo("x", shape, FLOAT))
        assert str(list(shape)) in error.message
        assert ".npy" in error.hint


class TestImages:
    def test_a_single_image(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.png", picture(5))
        np.testing.assert_array_equal(only(path), nchw(picture(5)))

    def test_grey(self, tmp_path: Path) -> None:
        grey = picture(5)[:, :, 0]
        cv2.imwrite(str(tmp_path / "grey.png"), grey)
        np.testing.assert_array_equal(only(tmp_path / "grey.png", GREY)[0, 0], grey)

    def test_alpha(self, tmp_path: Path) -> None:
        rgba = np.dstack((picture(5), picture(6)[:, :, 0]))
        cv2.imwrite(str(tmp_path / "a.png"), cv2.cvtColor(rgba, cv2.COLOR_RGBA2BGRA))
        np.testing.assert_array_equal(load_image(tmp_path / "a.png", HEIGHT, WIDTH, 4), rgba)
        opaque = load_image(write(tmp_path / "b.png", picture(5)), HEIGHT, WIDTH, 4)
        np.testing.assert_array_equal(opaque[:, :, :3], picture(5))
        assert (opaque[:, :, 3] == 255).all()

    def test_shrinks_by_area(self, tmp_path: Path) -> None:
        large = picture(1, 4 * HEIGHT, 4 * WIDTH)
        means = large.reshape(HEIGHT, 4, WIDTH, 4, 3).mean(axis=(1, 3))
        loaded = load_image(write(tmp_path / "a.png", large), HEIGHT, WIDTH)
        assert np.abs(loaded - means).max() <= 0.5 + 1e-6

    def test_grows_linearly(self, tmp_path: Path) -> None:
        ramp = np.repeat(np.linspace(0, 200, WIDTH // 2).astype(np.uint8)[None, :, None], HEIGHT // 2, 0).repeat(3, 2)
        row = load_image(write(tmp_path / "a.png", ramp), HEIGHT, WIDTH)[0, :, 0].astype(int)
        assert (np.diff(row[1:-1]) > 0).all()  # repeated pixels would give zeros

    def test_a_name_beyond_ascii(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.png", picture(1)).rename(tmp_path / "straße 1.png")
        np.testing.assert_array_equal(load_image(path, HEIGHT, WIDTH), picture(1))

    @pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
    def test_damaged(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"page{suffix}", picture(1, 64, 64))
        whole = path.read_bytes()
        for damaged in (b"", b"this is not a picture", whole[: len(whole) // 2]):
            path.write_bytes(damaged)
            with pytest.raises(ImageError, match=f"page{suffix}"):
                load_image(path, HEIGHT, WIDTH)
            assert f"page{suffix}" in failure(tmp_path).message

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match=re.escape("none.png")):
            load_image(tmp_path / "none.png", HEIGHT, WIDTH)

    def test_channels(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="not 2"):
            load_image(write(tmp_path / "a.png", picture(0)), HEIGHT, WIDTH, 2)


class TestPreprocessing:
    def expected(self, rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return ((rgb.astype(np.float32) - (10, 20, 30)) / (2, 4, 5)).transpose(2, 0, 1)[None].astype(np.float32)

    def test_images_and_arrays_alike(self, tmp_path: Path) -> None:
        rgb = picture(3)
        sources = (write(tmp_path / "a.png", rgb), rgb, nchw(rgb), nchw(rgb).astype(np.float64))
        for source in sources:
            np.testing.assert_allclose(only(source, NORMALISED), self.expected(rgb), rtol=1e-6)

    def test_one_mean_for_all_channels(self) -> None:
        info = InputInfo("x", PLAIN.shape, FLOAT, Preprocess((10.0,), (2.0,)))
        np.testing.assert_array_equal(only(picture(0), info), (nchw(picture(0)) - 10) / 2)

    def test_the_source_is_left_as_it_was(self) -> None:
        array = nchw(picture(0))
        before = array.copy()
        sample = only(array, NORMALISED)
        sample[:] = 0
        np.testing.assert_array_equal(array, before)

    @pytest.mark.parametrize(
        ("info", "message"),
        [
            (InputInfo("x", PLAIN.shape, np.dtype("uint8"), Preprocess((0.0,), (255.0,))), "uint8"),
            (InputInfo("x", PLAIN.shape, FLOAT, Preprocess((0.0,), (0.0,))), "std not zero"),
            (InputInfo("x", PLAIN.shape, FLOAT, Preprocess((0.0, 1.0, 2.0), (1.0,))), "3 mean values and 1 std"),
            (
                InputInfo("x", PLAIN.shape, FLOAT, Preprocess((0.0, 1.0), (1.0, 1.0))),
                "2 mean values for an input of shape [1, 3, 6, 8]",
            ),
        ],
    )
    def test_what_does_not_fit(self, info: InputInfo, message: str) -> None:
        error = failure(picture(0), info)
        assert message in error.message
        assert error.tensor == "x"


class TestDatasetFiles:
    def test_paths_beside_the_file_and_in_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        here, there = tmp_path / "here", tmp_path / "there"
        here.mkdir()
        there.mkdir()
        write(there / "a picture.png", picture(1))
        np.save(here / "b.npy", picture(2))
        absolute = write(tmp_path / "c.png", picture(3))
        monkeypatch.chdir(here)
        listing = there / "dataset.txt"
        listing.write_text(f"# pages\n\na picture.png\n  b.npy  \n   # more\n{absolute}\n", encoding="utf-8-sig")
        dataset = open_dataset(listing, (PLAIN,))
        assert len(dataset) == 3
        for seed, sample in enumerate(dataset, 1):
            np.testing.assert_array_equal(sample["x"], nchw(picture(seed)))

    def test_several_inputs(self, tmp_path: Path) -> None:
        write(tmp_path / "a.png", picture(1))
        np.save(tmp_path / "a.npy", np.arange(4.0))
        (tmp_path / "list").write_text("a.png a.npy\na.png\ta.npy\n")
        samples = list(open_dataset(tmp_path / "list", PAIR))
        assert len(samples) == 2
        np.testing.assert_array_equal(samples[1]["x"], nchw(picture(1)))
        assert samples[1]["y"].tolist() == [[0, 1, 2, 3]]

    def test_missing_file_is_named_with_its_line_before_anything_is_read(self, tmp_path: Path) -> None:
        write(tmp_path / "a.png", picture(1))
        listing = tmp_path / "list.txt"
        listing.write_text("a.png\n\nnone.png\n")
        with pytest.raises(CalibrationError, match=r"list\.txt' line 3: there is no file 'none\.png'"):
            open_dataset(listing, (PLAIN,))

    def test_too_few_files_on_a_line(self, tmp_path: Path) -> None:
        write(tmp_path / "a.png", picture(1))
        (tmp_path / "list.txt").write_text("a.png\n")
        assert "line 1 (a.png) has 1 value for 2 inputs" in failure(tmp_path / "list.txt", *PAIR).message

    def test_damaged_image_is_named_with_its_line(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(b"no picture")
        (tmp_path / "list.txt").write_text("a.png\n")
        message = failure(tmp_path / "list.txt").message
        assert "line 1" in message
        assert "a.png" in message

    def test_without_samples(self, tmp_path: Path) -> None:
        (tmp_path / "list.txt").write_text("# nothing\n\n")
        assert "names no samples" in failure(tmp_path / "list.txt").message

    def test_unknown_kind_of_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"\x08\x07\xff\xfe\x00")
        assert "is not text" in failure(tmp_path / "model.onnx").message
        (tmp_path / "a.pdf").write_text("x")
        (tmp_path / "list.txt").write_text("a.pdf\n")
        assert "neither an image nor .npy" in failure(tmp_path / "list.txt").message


class TestArrayFiles:
    @pytest.mark.parametrize(
        ("shape", "samples"),
        [
            ((3, HEIGHT, WIDTH), 1),
            ((HEIGHT, WIDTH, 3), 1),
            ((1, 3, HEIGHT, WIDTH), 1),
            ((5, 3, HEIGHT, WIDTH), 5),
            ((5, HEIGHT, WIDTH, 3), 5),
            ((5, 1, 3, HEIGHT, WIDTH), 5),
        ],
    )
    def test_layouts(self, tmp_path: Path, shape: tuple[int, ...], samples: int) -> None:
        array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.save(tmp_path / "a.npy", array)
        channels_last = shape[-1] == 3
        expected = array.reshape(samples, *shape[-3:])
        expected = expected.transpose(0, 3, 1, 2) if channels_last else expected
        for source in (tmp_path / "a.npy", array):
            dataset = open_dataset(source, (PLAIN,))
            assert len(dataset) == samples
            np.testing.assert_array_equal(np.concatenate([sample["x"] for sample in dataset]), expected)

    @pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (1, HEIGHT, WIDTH), (4, HEIGHT, WIDTH), (4, HEIGHT, WIDTH, 1)])
    def test_grey_without_a_channel_axis(self, shape: tuple[int, ...]) -> None:
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        dataset = open_dataset(array, (GREY,))
        assert len(dataset) == array.size // (HEIGHT * WIDTH)
        np.testing.assert_array_equal(np.concatenate([sample["x"].ravel() for sample in dataset]), array.ravel())

    def test_a_shape_that_fits_is_never_transposed(self) -> None:
        array = np.arange(27.0).reshape(1, 3, 3, 3)
        np.testing.assert_array_equal(only(array, InputInfo("x", (1, 3, 3, 3), FLOAT)), array)

    def test_batches(self) -> None:
        info = InputInfo("x", (4, 2), FLOAT)
        rows = np.arange(12.0).reshape(6, 2)
        first, second = open_dataset(rows, (info,))
        np.testing.assert_array_equal(first["x"], rows[:4])
        np.testing.assert_array_equal(second["x"], rows[[4, 5, 4, 5]])
        assert only(np.array([7.0, 8.0]), info).tolist() == [[7, 8]] * 4
        assert len(open_dataset(np.zeros((3, 4, 2)), (info,))) == 3

    def test_vectors_and_scalars(self) -> None:
        scalar = InputInfo("x", (), FLOAT)
        assert only(np.array(3.0), scalar).shape == ()
        assert [float(sample["x"]) for sample in open_dataset(np.array([1.0, 2.0]), (scalar,))] == [1, 2]
        assert [sample["x"].tolist() for sample in open_dataset(np.array([1, 2]), (InputInfo("x", (1,), FLOAT),))] == [[1], [2]]

    def test_npz_by_name(self, tmp_path: Path) -> None:
        np.savez(
            tmp_path / "a.npz",
            y=np.arange(12.0).reshape(3, 4),
            x=np.stack([picture(0), picture(1), picture(2)]),
            extra=np.zeros(2),
        )
        dataset = open_dataset(tmp_path / "a.npz", PAIR)
        assert len(dataset) == 3
        sample = list(dataset)[2]
        assert list(sample) == ["x", "y"]
        np.testing.assert_array_equal(sample["x"], nchw(picture(2)))
        assert sample["y"].tolist() == [[8, 9, 10, 11]]

    def test_npz_with_one_sample_of_an_input(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", y=np.arange(4.0), x=np.stack([picture(0), picture(1)]))
        assert [sample["y"].tolist() for sample in open_dataset(tmp_path / "a.npz", PAIR)] == [[[0, 1, 2, 3]]] * 2

    def test_npz_with_a_single_array_of_any_name(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", picture(0))
        np.testing.assert_array_equal(only(tmp_path / "a.npz"), nchw(picture(0)))

    def test_npz_that_lacks_an_input(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=picture(0), z=np.zeros(4))
        error = failure(tmp_path / "a.npz", *PAIR)
        assert "a.npz' has no array for input 'y'; it has 'x', 'z'" in error.message

    def test_npz_with_different_numbers(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.stack([picture(0)] * 3), y=np.zeros((2, 4)))
        assert "'x' 3, 'y' 2" in failure(tmp_path / "a.npz", *PAIR).message

    @pytest.mark.parametrize("suffix", [".npy", ".npz"])
    def test_damaged(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"a{suffix}"
        if suffix == ".npy":
            np.save(path, nchw(picture(0)))
        else:
            np.savez_compressed(path, x=nchw(picture(0)))
        whole = path.read_bytes()
        for damaged in (b"", b"nothing", whole[: len(whole) // 2]):
            path.write_bytes(damaged)
            assert f"cannot read '{path}'" in failure(path).message

    def test_npy_under_the_name_of_npz(self, tmp_path: Path) -> None:
        with (tmp_path / "a.npz").open("wb") as file:
            np.save(file, picture(0))
        assert "rename it" in failure(tmp_path / "a.npz").hint

    def test_objects(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
        assert "a.npy" in failure(tmp_path / "a.npy").message
        np.save(tmp_path / "b.npy", np.array(["text"]))
        assert "does not hold an array of numbers" in failure(tmp_path / "b.npy").message


class TestIterables:
    def samples(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        return [{"x": picture(seed), "y": np.full(4, seed, np.float32)} for seed in range(4)]

    def check(self, source: Any, *, known: bool) -> None:
        dataset = open_dataset(source, PAIR, limit=3)
        assert dataset.length == (3 if known else None)
        for _ in range(2):
            passed = list(dataset)
            assert [float(sample["y"][0, 0]) for sample in passed] == [0, 1, 2]
            for seed, sample in enumerate(passed):
                np.testing.assert_array_equal(sample["x"], nchw(picture(seed)))

    def test_list_of_dicts(self) -> None:
        self.check(self.samples(), known=True)

    def test_list_of_tuples_and_lists(self) -> None:
        self.check([(sample["x"], sample["y"]) for sample in self.samples()], known=True)
        self.check([[sample["x"], sample["y"]] for sample in self.samples()], known=True)

    def test_generator_is_read_once_and_not_beyond_the_limit(self) -> None:
        served = 0

        def generate() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
            nonlocal served
            for sample in self.samples():
                served += 1
                yield sample

        self.check(generate(), known=False)
        assert served == 3

    def test_generator_that_fills_one_array_again_and_again(self) -> None:
        def generate() -> Iterator[np.ndarray[Any, Any]]:
            frame = np.empty((HEIGHT, WIDTH, 3), np.uint8)
            for seed in range(3):
                frame[:] = picture(seed)
                yield frame

        dataset = open_dataset(generate(), (PLAIN,))
        for _ in range(2):
            for seed, sample in enumerate(dataset):
                np.testing.assert_array_equal(sample["x"], nchw(picture(seed)))

    def test_pass_that_was_broken_off(self) -> None:
        dataset = open_dataset(iter([np.full(4, index) for index in range(5)]), (PAIR[1],))
        next(iter(dataset))
        assert [float(sample["y"][0, 0]) for sample in dataset] == [0, 1, 2, 3, 4]

    def test_iterable_that_shuffles(self) -> None:
        class Shuffled:
            def __init__(self) -> None:
                self.random = np.random.default_rng(0)

            def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
                return iter(self.random.normal(size=(5, 4)))

        dataset = open_dataset(Shuffled(), (PAIR[1],))
        first, second = ([sample["y"] for sample in dataset] for _ in range(2))
        np.testing.assert_array_equal(first, second)

    def test_length_that_is_not_known(self) -> None:
        with pytest.raises(TypeError, match="not known"):
            len(open_dataset(iter(self.samples()), PAIR))
        assert "at most 7 samples" in open_dataset(iter(self.samples()), PAIR, limit=7).description

    def test_function(self) -> None:
        def pages() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
            yield from self.samples()

        self.check(pages, known=False)
        assert "function pages" in open_dataset(pages, PAIR).description

    def test_dict_of_batches(self) -> None:
        self.check({name: np.stack([sample[name] for sample in self.samples()]) for name in ("x", "y")}, known=True)

    def test_paths(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.png", picture(2))
        np.save(tmp_path / "b.npy", picture(2))
        dataset = open_dataset([path, str(tmp_path / "b.npy"), picture(2)], (PLAIN,))
        assert len(dataset) == 3
        for sample in dataset:
            np.testing.assert_array_equal(sample["x"], nchw(picture(2)))
        assert "sample 1: there is no file 'none.png'" in failure([path, "none.png"]).message

    def test_nothing_in_it(self) -> None:
        assert "empty" in failure([]).message
        assert "gave no samples" in failure(iter([])).message
        assert "gave no samples" in failure(list).message
        assert "empty" in failure(np.zeros((0, 3, HEIGHT, WIDTH))).message

    @pytest.mark.parametrize("source", [None, 5, b"bytes", {"x"}, lambda: 5, lambda: "text", ["none"], [None], [{}]])
    def test_what_is_no_data(self, source: Any) -> None:
        failure(source)

    def test_names(self) -> None:
        error = failure([self.samples()[0], {"x": picture(0), "why": np.zeros(4)}], *PAIR)
        assert "sample 1 has no array for input 'y'; it has 'x', 'why'" in error.message
        assert "'x', 'y'" in error.hint

    def test_numbers(self) -> None:
        assert "sample 0 has 4 values for 1 input" in failure([[1.0, 2.0, 3.0, 4.0]], PAIR[1]).message
        assert "sample 0 has 1 value for 2 inputs" in failure([picture(0)], *PAIR).message


class TestShapesAndTypes:
    @pytest.mark.parametrize(
        ("shape", "hint"),
        [
            ((WIDTH, HEIGHT, 3), "exchanged"),
            ((1, 3, WIDTH, HEIGHT), "exchanged"),
            ((HEIGHT, WIDTH, 4), "4 channels, the input 3"),
            ((HEIGHT, WIDTH), "1 channels, the input 3"),
            ((2 * HEIGHT, 2 * WIDTH, 3), f"resize the image to {HEIGHT} x {WIDTH}"),
            ((7,), "with or without its first axis"),
        ],
    )
    def test_wrong_shape(self, shape: tuple[int, ...], hint: str) -> None:
        error = failure([picture(0), np.zeros(shape, np.uint8)])
        assert "sample 1" in error.message
        assert f"input 'x' takes [1, 3, {HEIGHT}, {WIDTH}], got {list(shape)}" in error.message
        assert error.tensor == "x"
        assert hint in error.hint

    def test_wrong_shape_in_a_file_is_found_before_a_pass(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros((5, 5)))
        with pytest.raises(CalibrationError, match=r"a\.npy"):
            open_dataset(tmp_path / "a.npy", (PLAIN,))

    def test_float16(self) -> None:
        assert only(picture(0), InputInfo("x", PLAIN.shape, np.dtype("float16"))).dtype == np.float16

    def test_raw_pixels_for_an_integer_input(self, tmp_path: Path) -> None:
        info = InputInfo("x", PLAIN.shape, np.dtype("uint8"))
        sample = only(write(tmp_path / "a.png", picture(0)), info)
        assert sample.dtype == np.uint8
        np.testing.assert_array_equal(sample, nchw(picture(0)))

    def test_integers(self) -> None:
        info = InputInfo("ids", (1, 3), np.dtype("int64"))
        sample = only(np.array([1.0, 2.0, 3.0]), info, name="ids")
        assert sample.dtype == np.int64
        assert sample.tolist() == [[1, 2, 3]]
        for values in ([0.5, 1, 2], [np.nan, 1, 2], [np.inf, 1, 2]):
            assert "int64 cannot hold" in failure(np.array(values), info).message
        assert "-128 to 127" in failure(np.array([1, 2, 300]), InputInfo("x", (1, 3), np.dtype("int8"))).hint

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
    def test_not_finite(self, value: float) -> None:
        batch = np.zeros((3, 4))
        batch[1, 2] = value
        assert "sample 1" in failure(batch, PAIR[1]).message

    def test_complex(self) -> None:
        assert "complex128" in failure(np.zeros(4, complex), PAIR[1]).message

    def test_limit_below_one(self) -> None:
        with pytest.raises(CalibrationError, match="limit of calibration samples is 0"):
            open_dataset(picture(0), (PLAIN,), limit=0)

    def test_model_without_inputs(self) -> None:
        with pytest.raises(CalibrationError, match="no inputs"):
            open_dataset(picture(0), ())
