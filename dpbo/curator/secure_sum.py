"""A sum over ranks that do not trust each other: each sends its words under masks that cancel in
the total alone.

Parties: k ranks and whoever relays their messages. At most c = `tolerate` ranks may be curious,
silent or put together all that they know, the same ones in all releases. They may also send
anything; the others run this code. Adjacency is the curator's, within one rank: a unit has records
at one rank (`people-are-disjoint`).

Law. Each rank adds its own noise before the masks (mechanisms/shares.py has its law and price), so
the exact total exists nowhere.

View. For the t-th sum rank i sends w_i = R_i + (sum over j > i of p_ij) - (sum over j < i of p_ij),
modulo 2^64, where p_ij is a stream that i and j alone can compute. Let H be the honest ranks. Were
the streams between them independent and uniform, their words would be uniform among all vectors
with the sum that the R_i of H, and their streams with the others, have: the streams of one rank of
H with each other make all words but that one's uniform and independent. So everything that all
ranks send can be simulated from the total of H alone, and c ranks learn that total and nothing
else. Where H is one rank, that is its R_i, whose own noise is that of the stated guarantee. To wrap
modulo 2^64 is post-processing: it costs no privacy, and no noise of dpbo's comes near 2^63. With
X25519, HKDF-SHA256 and ChaCha20 in place of uniform streams all this holds against adversaries who
cannot break these.

Keys. Each rank has an identity key, from a file or made at the start, and a key that is made anew
at each start. A pair's secret joins the Diffie-Hellman results of both; the salt is a digest of all
public keys, k and c. So nobody without the identity key of i or j can compute p_ij, even where a
relay exchanged the other keys, if the ranks compared fingerprints of their identities; and no
stream of an earlier start returns, since a rank's new key is in the salt and in the secret. Within
a start a stream's key is derived from the pair, the number of the sum, which counts up, and a
digest of everything that the sum is about: question, law of the noise and the ledger's newest
entry. So no stream is used twice, and ranks that were told different things send words that are
uniform each by itself: the streams between them do not cancel.

A rank of H that cannot charge masks zeros in place of its share, also for whether it failed, with a
digest that it draws at random and tells nobody: to all others its words and the total are then
random, whatever they sent, and each of them had charged. To itself, if it is one of c that are
curious, the total is that of the k - c others.

What a rank that does not follow this can do: choose what it adds, and so spoil a value; end a step;
when all start, make up entries that shorter ledgers than its own take over (shared_ledger.py).
Every word is well-formed, so that cannot be seen, except that a word at random makes the total too
large (`OwnLedger.release`). It learns no more than above. If the masks fail, because a relay
exchanged all keys and no fingerprints were given or the cipher is broken, each release tells each
rank's R_i (`masks-hide-shares`): with Gaussian noise sqrt(k - c) times the stated mu, and its
number of units, if that of all is public, and whether it failed. Where more than c ranks put
together what they know, and h others are left, their total has Gaussian noise for sqrt((k - c) / h)
times the stated mu. Laplace noise of fewer than k - c shares is weak (mechanisms/shares.py).
"""

import hashlib
import pathlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from dpbo.errors import InputError
from dpbo.extras import needs
from dpbo.mechanisms.mechanism import Integers

with needs("federated"):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

# Bytes of a public key.
_KEY = 32
# Bytes by which a rank proves to another one what it holds.
_TAG = 32


class Masks:
    """This rank's masks of one start.

    Args:
        rank: rank of this process.
        tolerate: how many ranks may be curious or silent.
        key: file with this rank's private key, in PEM; None for one that is made now.
        fingerprints: SHA-256 of every rank's public key (DER), in hexadecimal, each the first word
            of a line; None to take what the group relays.
        exchange: sends bytes to all ranks, and gives those of each.

    Attributes:
        compared: whether fingerprints were compared.

    Raises:
        InputError: a file without an X25519 key, or other keys than the fingerprints say.
    """

    def __init__(
        self,
        rank: int,
        tolerate: int,
        key: str | pathlib.Path | None,
        fingerprints: Sequence[str] | None,
        exchange: Callable[[bytes], list[bytes]],
    ) -> None:
        identity = X25519PrivateKey.generate() if key is None else _read(key)
        fresh = X25519PrivateKey.generate()
        own = identity.public_key().public_bytes_raw() + fresh.public_key().public_bytes_raw()
        rows = exchange(own)
        identities = [X25519PublicKey.from_public_bytes(row[:_KEY]) for row in rows]
        self.compared = fingerprints is not None
        if fingerprints is not None:
            found = Counter(map(fingerprint_of, identities))
            given = Counter(line.split()[0].lower() for line in fingerprints if line.strip())
            if found != given:
                # Not those that came: they would be pasted into the file unread.
                missing = ", ".join(given - found)
                raise InputError(
                    "fingerprints",
                    missing or f"{given.total()} fingerprints",
                    f"those of the {len(rows)} keys that the ranks sent, one each",
                    "Ask the hospital whose fingerprint this is what it told you, by telephone or"
                    " letter. If that is it, somebody between you exchanges keys: stop.",
                )
        self._rank = rank
        self._count = 0
        self._salt = hashlib.sha256(b"".join(rows) + f"{len(rows)} {tolerate}".encode()).digest()
        self._secrets = {
            other: identity.exchange(public)
            + fresh.exchange(X25519PublicKey.from_public_bytes(row[_KEY:]))
            for other, (public, row) in enumerate(zip(identities, rows, strict=True))
            if other != rank
        }

    def masked(self, numbers: Integers, about: bytes) -> bytes:
        """The words to send for the next sum, which is about this digest."""
        self._count += 1
        words = numbers.astype("<i8").view("<u8").reshape(-1)
        zeros = bytes(words.nbytes)
        for other, secret in self._secrets.items():
            pair = f"{min(self._rank, other)} {max(self._rank, other)} {self._count} "
            key = HKDF(SHA256(), 32, self._salt, pair.encode() + about).derive(secret)
            stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(zeros)
            mask = np.frombuffer(stream, dtype="<u8")
            if other > self._rank:
                words += mask
            else:
                words -= mask
        return words.tobytes()

    def tags(self, message: bytes) -> bytes:
        """What proves to each rank, by the secret of the two, that this one holds the message."""
        self._count += 1
        others = range(len(self._secrets) + 1)
        return b"".join(self._tag(self._rank, other, message) for other in others)

    def unlike(self, rows: Sequence[bytes], message: bytes) -> list[int]:
        """The ranks whose row, made when this one made its `tags`, is of another message."""
        own = slice(self._rank * _TAG, (self._rank + 1) * _TAG)
        return [
            other
            for other in self._secrets
            if rows[other][own] != self._tag(other, self._rank, message)
        ]

    def _tag(self, sender: int, receiver: int, message: bytes) -> bytes:
        """What rank `sender` sends to `receiver`, one of which is this rank; zeros to itself."""
        if sender == receiver:
            return bytes(_TAG)
        secret = self._secrets[receiver if sender == self._rank else sender]
        told = f"{sender} tells {receiver} {self._count} ".encode()
        about = told + hashlib.sha256(message).digest()
        return HKDF(SHA256(), _TAG, self._salt, about).derive(secret)

    @staticmethod
    def total(rows: Sequence[bytes]) -> Integers:
        """The sum of all ranks' words, in which the masks cancel."""
        words = (np.frombuffer(row, dtype="<u8") for row in rows)
        return sum(words, np.uint64(0)).view("<i8")


def fingerprint_of(public: X25519PublicKey) -> str:
    """As `openssl pkey -pubout -outform DER | sha256sum` prints it."""
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _read(file: str | pathlib.Path) -> X25519PrivateKey:
    """A private key from its file."""
    try:
        key = load_pem_private_key(pathlib.Path(file).read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise InputError(
            "key",
            str(file),
            "a file that you may read, with an X25519 private key in PEM and without a password",
            "Make one: openssl genpkey -algorithm x25519 -out FILE.",
        )
    return key
