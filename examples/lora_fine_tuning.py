"""LoRA fine-tuning of a transformer by Opacus' own engine in ghost mode, rate and clip tuned, all
charged to one ledger.

Ghost clipping keeps no gradient of a single record, so it fits where per-record gradients do not.
The transformer is small and has random weights, and the messages are made up: put
`AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)` and your texts' tokens in
their place. Opacus draws its noise from torch's generator: the statement names what that assumes,
and on a GPU it assumes less.

    python -m examples.lora_fine_tuning
"""

import functools
import warnings
from typing import Any

import opacus
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import dpbo
from dpbo.accounting import RDPFilter, calibrate
from dpbo.dpsgd import LedgerAccountant
from dpbo.events import PoissonGaussianEvent

BUDGET = dpbo.Budget(epsilon=4.0, delta=1e-5)
FILTER = RDPFilter(7.0)
# rates and clips
SETTINGS = ((1e-2, 1.0), (3e-2, 0.3))
WORDS, LENGTH = 100, 16


def messages(count: int) -> TensorDataset:
    """Rows of 16 words; each class takes three quarters of them from a half of its own."""
    labels = torch.arange(count) % 2
    own = torch.rand(count, LENGTH) < 0.75
    half = torch.where(own, labels[:, None], 1 - labels[:, None])
    return TensorDataset(torch.randint(WORDS // 2, (count, LENGTH)) + WORDS // 2 * half, labels)


def transformer() -> Any:
    """Adapters in the attention of a small transformer, and a new head."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )
    adapters = LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"])
    return get_peft_model(BertForSequenceClassification(config), adapters)


def right(network: Any, records: TensorDataset) -> float:
    """The share of records that it classifies rightly."""
    tokens, labels = records.tensors
    network.eval()
    with torch.no_grad():
        return float((network(input_ids=tokens).logits.argmax(1) == labels).double().mean())


def trained(
    engine: opacus.PrivacyEngine,
    loader: Any,
    epochs: int,
    multiplier: float,
    rate: float,
    clip: float,
) -> Any:
    """One network, trained by this rate and clip."""
    network = transformer()
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    module, optimizer, loss, loader = engine.make_private(
        module=network.train(),
        optimizer=torch.optim.Adam(trainable, lr=rate),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=multiplier,
        max_grad_norm=clip,
        grad_sample_mode="ghost",
    )
    for _ in range(epochs):
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss(module(input_ids=tokens).logits, labels).backward()
            optimizer.step()
    return network


def main(
    records: int = 4000, epochs: int = 6, batch: int = 250
) -> tuple[float, float, dpbo.Curator]:
    """The accuracy on public messages before and after, and the protected ones' curator.

    Every rate and clip is paid for, and its network may be published. So they are compared on
    public messages, which costs nothing.
    """
    warnings.simplefilter("ignore")  # of Opacus' generators and hooks
    protected = messages(records)
    loader: Any = DataLoader(protected, batch_size=batch)
    steps = epochs * len(loader)
    step = functools.partial(
        PoissonGaussianEvent, rate=1 / len(loader), relation="add-or-remove-one"
    )
    releases = len(SETTINGS) * steps
    multiplier = calibrate(BUDGET, releases=releases, accounting=FILTER, event=step)
    curator = dpbo.Curator(
        protected,
        unit="record",
        adjacency="add-or-remove-one",
        budget=BUDGET,
        role="training",
        accounting=FILTER,
    )
    compared, kept_back = messages(1000), messages(1000)
    before = right(transformer(), kept_back)
    networks = []
    for rate, clip in SETTINGS:
        engine = opacus.PrivacyEngine()
        engine.accountant = LedgerAccountant(
            curator, noise_multiplier=multiplier, steps=steps, name=f"rate {rate:g}, clip {clip:g}"
        )
        networks.append(trained(engine, loader, epochs, multiplier, rate, clip))
    best = max(networks, key=lambda network: right(network, compared))
    return before, right(best, kept_back), curator


if __name__ == "__main__":
    first, last, owner = main()
    print(f"accuracy {first:.3f}, after {last:.3f}; epsilon {owner.spent.epsilon:.3f}")
    print(f"\n{owner.statement()}")
