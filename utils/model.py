"""The attention-only transformer of the paper: a residual stream, heads that add to it, and nothing else.

Row vectors throughout: the residual stream `x` is [batch, seq, d_model] and a weight acts as `x @ W`.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.hook_points import HookPoint


@dataclass(frozen=True)
class AttentionOnlyConfig:
    """The shapes of a model. `positions`: "qk" adds W_pos to queries and keys alone, "stream" to the stream itself."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int
    seed: int = 0
    positions: str = "qk"
    smeared_keys: bool = False

    def __post_init__(self):
        if self.positions not in ("qk", "stream"):
            raise ValueError(f'positions must be "qk" or "stream", not {self.positions!r}.')
        for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx"):
            least = 0 if name == "n_layers" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")


class Attention(nn.Module):
    """A layer: the sum over heads of softmax(x W_Q W_Kᵀ xᵀ / √d_head) x W_V W_O."""

    def __init__(self, config: AttentionOnlyConfig):
        super().__init__()
        inward = config.n_heads, config.d_model, config.d_head
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(inward)) for _ in "QKV")
        self.W_O = nn.Parameter(torch.empty(config.n_heads, config.d_head, config.d_model))
        self.alpha = nn.Parameter(torch.zeros(config.n_heads)) if config.smeared_keys else None
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Tensor, positions: Tensor | float) -> Tensor:
        placed = x + positions
        q = self.hook_q(project(placed, self.W_Q))  # (batch, dest, head, d_head)
        k = self.hook_k(smear(project(placed, self.W_K), self.alpha))  # (batch, src, head, d_head)
        v = self.hook_v(project(x, self.W_V))
        scores = torch.einsum("bdhe,bshe->bhds", q / q.shape[-1] ** 0.5, k)
        future = torch.full(scores.shape[-2:], float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        scores = self.hook_attn_scores(scores + future)
        pattern = self.hook_pattern(scores.softmax(dim=-1))  # (batch, head, dest, src)
        z = self.hook_z(torch.einsum("bhds,bshe->bdhe", pattern, v))
        return z.flatten(2) @ self.W_O.flatten(0, 1)  # concatenate and multiply: the same as adding head by head


def smear(k: Float[Tensor, "batch seq head d_head"], alpha: Float[Tensor, " head"] | None) -> Tensor:
    """k_j ← σ(α) k_j + (1 − σ(α)) k_{j−1}, one learned α a head, k_0 as it is; without α, k itself."""
    if alpha is None:
        return k
    own = alpha.sigmoid()[:, None]
    return torch.cat([k[:, :1], own * k[:, 1:] + (1 - own) * k[:, :-1]], dim=1)


def project(x: Float[Tensor, "batch seq d_model"], W: Float[Tensor, "head d_model d_head"]) -> Tensor:
    """x W for all heads in one product: [batch, seq, head, d_head]."""
    return (x @ W.transpose(0, 1).flatten(1)).unflatten(-1, (W.shape[0], W.shape[2]))


class Block(nn.Module):
    """What a layer does to the stream: read it, add to it."""

    def __init__(self, config: AttentionOnlyConfig):
        super().__init__()
        self.attn = Attention(config)
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Tensor, positions: Tensor | float) -> Tensor:
        x = self.hook_resid_pre(x)
        return self.hook_resid_post(x + self.hook_attn_out(self.attn(x, positions)))


class AttentionOnly(HookedRootModule):
    """logits = (embedding + what every head adds) W_U. No biases, no LayerNorm, no MLP; n_layers may be 0."""

    def __init__(self, config: AttentionOnlyConfig):
        super().__init__()
        self.cfg = config
        self.embed = nn.ParameterDict({"W_E": torch.empty(config.d_vocab, config.d_model)})
        self.pos_embed = nn.ParameterDict({"W_pos": torch.empty(config.n_ctx, config.d_model)})
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.unembed = nn.ParameterDict({"W_U": torch.empty(config.d_model, config.d_vocab)})
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        self.initialise()
        self.setup()  # names the hooks

    @torch.no_grad()
    def initialise(self) -> None:
        """Normal weights from the config's seed alone: embeddings with sd 0.4, matrices with variance 1 / rows."""
        generator = torch.Generator().manual_seed(self.cfg.seed)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:  # alpha stays 0: half of each key is the token's own
                scale = 0.4 if "embed.W_" in name and "un" not in name else weight.shape[-2] ** -0.5
                weight.copy_(scale * torch.randn(weight.shape, generator=generator))

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_vocab"]:
        check_tokens(tokens, self.cfg)
        x = self.hook_embed(F.embedding(tokens.long(), self.W_E))
        positions = self.hook_pos_embed(self.W_pos[: tokens.shape[1]])
        if self.cfg.positions == "stream":
            x, positions = x + positions, 0.0
        for block in self.blocks:
            x = block(x, positions)
        return x @ self.W_U

    def loss(self, tokens: Int[Tensor, "batch seq"], per_token: bool = False) -> Float[Tensor, "..."]:
        """Next-token cross-entropy in nats: the mean, or [batch, seq − 1] with per_token."""
        return next_token_loss(self(tokens), tokens, per_token)

    def run_with_cache(self, *args, **kwargs) -> tuple[Tensor, ActivationCache]:
        """Logits, and every activation by TransformerLens name: cache["pattern", 0], cache["q", 1], …"""
        logits, cache = super().run_with_cache(*args, **kwargs)
        return logits, ActivationCache(cache, self)

    W_E = property(lambda self: self.embed.W_E)
    W_pos = property(lambda self: self.pos_embed.W_pos)
    W_U = property(lambda self: self.unembed.W_U)
    W_Q = property(lambda self: self.stacked("W_Q"))
    W_K = property(lambda self: self.stacked("W_K"))
    W_V = property(lambda self: self.stacked("W_V"))
    W_O = property(lambda self: self.stacked("W_O"))
    QK = property(lambda self: FactoredMatrix(self.W_Q, self.W_K.mT))
    OV = property(lambda self: FactoredMatrix(self.W_V, self.W_O))

    def stacked(self, name: str) -> Float[Tensor, "layer head rows columns"]:
        """One kind of weight of all layers; with no layers, an empty tensor of the right shape."""
        if self.blocks:
            return torch.stack([getattr(block.attn, name) for block in self.blocks])
        rows, columns = self.cfg.d_model, self.cfg.d_head
        shape = (columns, rows) if name == "W_O" else (rows, columns)
        return self.W_E.new_empty(0, self.cfg.n_heads, *shape)


def check_tokens(tokens: Tensor, cfg) -> None:
    """Say what is wrong with tokens that a model cannot read."""
    if tokens.ndim != 2 or tokens.numel() == 0 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"Tokens must be integers [batch, seq], not empty; got {tokens.dtype} {list(tokens.shape)}.")
    if tokens.shape[1] > cfg.n_ctx:
        raise ValueError(f"A sequence of {tokens.shape[1]} tokens is longer than n_ctx = {cfg.n_ctx}: cut it.")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= cfg.d_vocab:
        raise ValueError(f"Tokens run from 0 to {cfg.d_vocab - 1}; got {low if low < 0 else high}.")


def next_token_loss(
    logits: Float[Tensor, "batch seq d_vocab"], tokens: Int[Tensor, "batch seq"], per_token: bool = False
) -> Float[Tensor, "..."]:
    """Next-token cross-entropy in nats: the mean, or [batch, seq − 1] with per_token."""
    if tokens.shape[1] < 2:
        raise ValueError("A loss needs at least two tokens: one to read and one to predict.")
    logits, targets = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long()
    losses = F.cross_entropy(logits, targets, reduction="none" if per_token else "mean")
    return losses.view(len(tokens), -1) if per_token else losses


def save(model: AttentionOnly, path: Path | str) -> None:
    """One safetensors file with the config in its metadata; the file appears whole or not at all."""
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    write(path, to_bytes(weights, {"config": json.dumps(asdict(model.cfg))}))


def write(path: Path | str, content: bytes) -> None:
    """Write beside the file, then rename: whatever goes wrong, the old file is still there."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(
            f"Could not write {path} ({error.strerror}); nothing was changed. Free space or go elsewhere."
        ) from error


def load(path: Path | str) -> AttentionOnly:
    """The model that `save` wrote, on the CPU, in eval mode."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no model at {path}. `make data` rebuilds the course's own models.")
    try:
        with safe_open(path, framework="pt") as file:
            model = AttentionOnly(AttentionOnlyConfig(**json.loads(file.metadata()["config"])))
            model.to(file.get_tensor("embed.W_E").dtype)
            model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or not a model of this course: `git checkout` it or run `make data`.") from error
    return model.eval()
