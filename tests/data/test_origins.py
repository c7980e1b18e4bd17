"""Names of examples lead back to them: the row of the file, the picture, the place in the user's own lists."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import shoal
from shoal.data import ClientSplit, PictureFormat, federation_of_clients, load_folder, load_table

STREAM = shoal.Stream(0)
PARTS = ("clients", "holdout", "test")


def named(federation: shoal.Federation, part: str) -> dict[str, torch.Tensor]:
    """The inputs of a part of the federation by their names, which are all different."""
    x = getattr(federation, part).x
    names = [federation.origins[part](row) for row in range(len(x))]
    assert len(set(names)) == len(names) > 0
    return dict(zip(names, x, strict=True))


def table_of(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"who": ["b", "a", "c"] * rows, "age": np.arange(3.0 * rows), "ill": [0, 1] * (3 * rows // 2)})


def federation_of(data: shoal.data.ClientDataset) -> shoal.Federation:
    indices = ClientSplit(holdout_fraction=0.2).draw(data, STREAM)
    return federation_of_clients(data, indices, shoal.draw_preferences(len(data.client_names), (0.5, 0.8), 0.5, STREAM))


@pytest.mark.parametrize("part", PARTS)
def test_a_row_of_a_table_is_counted_with_the_header_as_the_file_does(part: str, tmp_path: Path) -> None:
    table_of(10).to_csv(tmp_path / "wards.csv", index=False)
    federation = federation_of(load_table(tmp_path / "wards.csv", shoal.Columns("who", "ill")))
    lines = (tmp_path / "wards.csv").read_text().splitlines()
    ages = {name: float(lines[int(name.removeprefix("wards.csv row ")) - 1].split(",")[1])
            for name in named(federation, part)}  # fmt: skip
    x = torch.stack(list(named(federation, part).values())).squeeze(1)
    assert np.corrcoef(list(ages.values()), x)[0, 1] == pytest.approx(1)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("listed", [False, True])
def test_a_picture_has_the_path_that_the_user_gave_it(part: str, listed: bool, tmp_path: Path) -> None:
    rows, grey = [], iter(range(18))
    for client in ("anna", "ben"):
        for picture in range(9):
            path = Path(client, "cat" if picture % 2 else "dog", f"{picture}.png")
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2), 10 * next(grey)).save(tmp_path / path)
            rows.append({"client": client, "class": path.parts[1], "path": str(path)})
    pd.DataFrame(rows).to_csv(tmp_path / "list.csv", index=False)
    if not listed:
        (tmp_path / "list.csv").unlink()
    federation = federation_of(load_folder(tmp_path / "list.csv" if listed else tmp_path, PictureFormat()))
    for name, x in named(federation, part).items():
        with Image.open(tmp_path / name) as picture:
            assert picture.getpixel((0, 0)) == round(255 * float(x.flatten()[0]))


def test_names_of_tensors_examples_are_python_expressions() -> None:
    numbers = torch.arange(60.0)[:, None]
    clients = [numbers[:10], numbers[10:17], numbers[17:30]]
    holdout, test = [numbers[30:32], numbers[32:33], numbers[33:36]], numbers[40:]
    made = shoal.Federation.from_tensors(
        [(x, [0, 1] * (len(x) // 2) + [0] * (len(x) % 2)) for x in clients],
        holdout=[(x, [0] * len(x)) for x in holdout],
        test=(test, [0, 1] * 10),
    )
    canaries = shoal.MislabelledCanaries(per_client=5, clients="all").insert(made, STREAM)[0]
    for federation in (made, canaries, pickle.loads(pickle.dumps(made)), made.take(torch.tensor([2, 0, 1]))):
        for part in PARTS:
            for name, x in named(federation, part).items():
                assert eval(name, {"clients": clients, "holdout": holdout, "test": test}) == x


@pytest.mark.parametrize("part", ["clients", "test"])
def test_rows_of_a_frame_are_counted_in_its_order(part: str) -> None:
    table = table_of(4).set_index(np.arange(100, 112))
    found = named(shoal.Federation.from_table(table, shoal.Columns("who", "ill"), test=table), part)
    rows = [int(name.removesuffix("]").split("[")[1]) for name in found]
    ages, x = table["age"].to_numpy()[rows], torch.stack(list(found.values())).squeeze(1)
    assert np.corrcoef(ages, x)[0, 1] == pytest.approx(1)


def test_an_example_of_a_data_set_has_its_place_in_the_official_split() -> None:
    pixels = torch.arange(60, dtype=torch.uint8).reshape(60, 1, 1, 1)
    data = shoal.ImageDataset("grey", pixels, white=255, labels=torch.arange(60) % 2, train_count=40, classes=2)
    plan = shoal.Partition(2, 15, holdout_examples=2, test_examples=20)
    federation = shoal.partition_dataset(data, plan, [shoal.Group("all", 1.0)])
    for part in PARTS:
        for name, x in named(federation, part).items():
            split, number = name.removeprefix("grey ").removesuffix("]").split("[")
            assert pixels[int(number) + 40 * (split == "test")].item() == round(255 * float(x.flatten()[0]))


@pytest.mark.parametrize("reused", [False, True])
def test_an_audit_names_records_as_the_user_has_them_and_each_once(reused: bool, tmp_path: Path) -> None:
    digits, groups = shoal.load_dataset("digits"), [shoal.Group("one", 0.5), shoal.Group("two", 0.5, rotation=(90, 90))]
    plan = shoal.Partition(4, 10, test_examples=60, reuse_images=reused)
    federation = shoal.partition_dataset(digits, plan, groups, stream=STREAM)
    model = shoal.create_model("logistic", shoal.Shape(1, 8, 8, 10))
    result = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1)
    audit = result.audit(tmp_path, references=1)
    stored = pd.read_csv(tmp_path / "scores.csv")
    assert set(stored["record"]) == set(audit.records["record"])
    assert stored["record"].is_unique
    assert stored["record"].str.fullmatch(r"digits\[\d+\]( of \d)?").all()
    assert audit.records["record"].iloc[0] in (tmp_path / "audit.html").read_text()
