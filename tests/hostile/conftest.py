"""A small table and a model of it, for all attacks; and how they are counted."""

import numpy as np
import pandas as pd
import pytest
import torch

from ctem import CTEM
from ctem.densities.anyorder import Settings, fitting

TINY = {"width": 8, "blocks": 1, "members": 2, "orders": 2, "batch_size": 32, "random_state": 3}


@pytest.fixture
def tally(request):
    """Called with what was tried and how it ended, counts by ending: summed over tests and printed at the end."""

    def note(what, endings):
        request.node.user_properties.append(("tally", [what, dict(endings)]))

    return note


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Children are forked: threads of their parent would be missing in them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _small_fits():
    """The command line has no option for the size of networks: small ones make the attacks quick.

    It ends with the module, so that no other test has such fits.
    """
    small = Settings(width=8, blocks=1, members=2, orders=2, steps=60, batch_size=32, evaluate_every=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "suited", lambda *sizes, **more: small)
        patch.setattr(fitting, "STEADY", 16)
        patch.setattr(fitting, "COPIES", 100)
        patch.setattr(CTEM, "realism", lambda self, X, random_state=None: None)  # a second of boosted trees
        yield


@pytest.fixture(scope="session")
def table():
    """Declared categories, a number with an atom, whole numbers with gaps, dates."""
    rng, n = np.random.default_rng(0), 150
    age = np.where(rng.random(n) < 0.1, None, rng.integers(18, 80, n))
    return pd.DataFrame(
        {
            "city": pd.Categorical(rng.choice(["Oslo", "Bergen"], n), ["Bergen", "Oslo", "Røros"]),
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(size=n)),
            "age": pd.array(age, dtype="Int64"),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        }
    )


@pytest.fixture(scope="session")
def model(table):
    """A model with everything that a file can hold."""
    return CTEM(**TINY, max_steps=10).fit(table)


@pytest.fixture(scope="session")
def folder(table, model, tmp_path_factory):
    """The table and its model in files."""
    folder = tmp_path_factory.mktemp("kills")
    table.to_csv(folder / "t.csv", index=False)
    model.save(folder / "m.ctem")
    return folder
