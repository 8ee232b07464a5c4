"""DP-SGD's sums and noise on a GPU: the CPU's integers from the same words, in Triton's interpreter
everywhere, and on a GPU where there is one.
"""

import numpy as np
import pytest
import scipy
import torch

from dpbo.dpsgd import device_noise
from tests.attacks.marks import attack
from tests.unit.gpu.interpreted import interpreted
from tests.unit.gpu.noise_cases import differing, errors

pytestmark = pytest.mark.gpu


def test_the_cipher_is_chacha20():
    """The test vectors of RFC 8439, A.1: 1, 2 and 3."""
    empty, second = device_noise.chacha20(bytes(32), 2)
    _, other = device_noise.chacha20(bytes(31) + b"\x01", 2)
    assert empty.tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1a")
    assert second.tobytes().hex().startswith("9f07e7be5551387a98ba977c732d080dcb0f29a048e36569")
    assert other.tobytes().hex().startswith("3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160")


def test_a_word_is_used_once():
    words = device_noise.stream(bytes(32), 3 * 8 * device_noise.LANES - 5)
    blocks = device_noise.chacha20(bytes(32), 3 * device_noise.LANES).view("<u8").ravel()
    assert len(np.unique(words)) == len(words) == len(blocks) - 5
    assert set(words.tolist()) < set(blocks.tolist())


def test_the_inverse_cdf_is_as_close_as_the_proof_needs():
    random = np.random.default_rng(0)
    p = np.concatenate([0.5 * random.random(10**5), 2.0 ** random.uniform(-17.0, -1.0, 10**5)])
    q = p - 0.5

    def quotient(r, table):
        above, below = (np.polynomial.polynomial.polyval(r, half) for half in np.split(table, 2))
        return above / below

    near = q * quotient(device_noise._CENTRAL**2 - q * q, np.array(device_noise._NEAR))
    far = -quotient(np.sqrt(-np.log(p)) - device_noise._MOVED, np.array(device_noise._FAR))
    z = np.where(-q <= device_noise._CENTRAL, near, far)
    assert np.abs(z / scipy.special.ndtri(p) - 1.0).max() < 2.0**-47


@attack("A14", "A17", "A25")
def test_interpreted_it_gives_the_cpus_integers():
    works, (apart, settled), drawn, errors = interpreted("tests.unit.gpu.noise_cases")
    on_grid, first, second, together = drawn
    assert works
    assert apart == 0
    assert settled > 0, "also the draws that the host settles"
    assert on_grid
    # six standard errors of 4,000 draws, and of their correlation: two calls share no key
    assert first == pytest.approx(1.0, abs=6 / 89)
    assert second == pytest.approx(1.0, abs=6 / 89)
    assert abs(together) < 6 / 63
    assert max(errors) < 1e-14, "norms and sums"


def test_a_kernel_that_does_not_run_is_warned_of_once_and_the_cpu_draws():
    host = torch.device("cpu")
    device_noise._works.cache_clear()
    with pytest.warns(RuntimeWarning, match="Noise is drawn on the CPU, which is as exact"):
        assert not device_noise._works(host)
    assert not device_noise._works(host)
    assert not device_noise.runs_on(host)
    device_noise._works.cache_clear()


@pytest.mark.cuda
@attack("A14", "A25")
def test_on_a_gpu_it_gives_the_cpus_integers():
    assert device_noise.runs_on(torch.device("cuda", 0))
    assert max(errors("cuda")) < 1e-14
    apart, settled = differing(4_000_003, "cuda")
    assert apart == 0
    assert settled > 0
