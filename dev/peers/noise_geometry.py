#!/usr/bin/env python3
"""The gradient noise scale of a checkpoint in three geometries, in tokens, computed with PyTorch from many rows.

    noise_geometry.py runs/mine/step_00000720 'data/bible/bible_train_*.bin' --rows 4096 --group 4

Gradients g of groups of rows give the mean G and the variance of every element, both without bias:
  euclidean   sum of variances / |G|^2, what train_gpt2 logs
  adamw       the same with both sums weighted by 1 / (v + eps^2), v the checkpoint's bias-corrected second moment
              (beta2 0.95), without elements of v = 0; null: the checkpoint (of Muon) has no v for all parameters
  nuclear     (mean |g - G|_* / |G|_*)^2 times the tokens of a group, over the blocks' matrices (arXiv 2602.03001)
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np  # noqa: E402
import peer_pytorch  # noqa: E402
import torch  # noqa: E402

BETA2, EPS = 0.95, 1e-8
SPECTRA = 64  # groups whose singular values are computed


def second_moments(folder, model):
    """By name of the parameter, or None. The file has them in the order of the flat array, padded to 256 elements."""
    with open(os.path.join(folder, 'optimizer-00000-of-00001.safetensors'), 'rb') as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))
        if header['__metadata__']['stretches'] != '0+' + header['__metadata__']['elements']: return None
        begin, end = header['second_moments']['data_offsets']
        file.seek(begin, os.SEEK_CUR)
        flat = np.frombuffer(file.read(end - begin), '<f4').astype(np.float64)
    with open(os.path.join(folder, 'trainer_state.json')) as file: step = json.load(file)['step']
    parameters, at, moments = dict(model.named_parameters()), 0, {}
    blocks = [f'h.{layer}.{name}.{kind}' for layer in range(len(model.h)) for name in
              ('ln_1', 'attn.c_attn', 'attn.c_proj', 'ln_2', 'mlp.c_fc', 'mlp.c_proj') for kind in ('weight', 'bias')]
    for name in ['wte.weight', 'wpe.weight', *blocks, 'ln_f.weight', 'ln_f.bias']:
        parameter = parameters[name]
        values = flat[at:at + parameter.numel()].reshape(parameter.shape)
        moments[name] = torch.from_numpy(values / (1 - BETA2 ** step))
        at += (parameter.numel() + 255) // 256 * 256
    return moments


def nuclear_norm(matrices):
    return sum(torch.linalg.matrix_norm(matrix.double(), ord='nuc').item() for matrix in matrices)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint')
    parser.add_argument('shards', help='a pattern of training shards; the first one is read')
    parser.add_argument('--rows', type=int, default=4096)
    parser.add_argument('--group', type=int, default=4, help='rows of a small batch')
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = peer_pytorch.make_model(given.checkpoint, 0)
    length = model.wpe.weight.shape[0]
    shard = peer_pytorch.files_of_pattern(given.shards)[0]
    tokens = np.fromfile(shard, '<u2', offset=1024).astype(np.int64)
    rows = np.random.default_rng(5).permutation((len(tokens) - 1) // length)[:given.rows]
    groups, size = len(rows) // given.group, given.group * length
    parameters = dict(model.named_parameters())
    matrices = [name for name, value in parameters.items() if name.startswith('h.') and value.dim() == 2]
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}
    squares = {name: torch.zeros_like(total) for name, total in sums.items()}
    kept = []
    for group in range(groups):
        at = np.sort(rows[group * given.group:(group + 1) * given.group])[:, None] * length + np.arange(length)
        model.zero_grad(set_to_none=True)
        model(torch.from_numpy(tokens[at]), torch.from_numpy(tokens[at + 1])).backward()
        for name, value in parameters.items():
            gradient = value.grad.double()
            sums[name] += gradient
            squares[name] += gradient * gradient
        if group < SPECTRA: kept.append({name: parameters[name].grad.clone() for name in matrices})
    means = {name: total / groups for name, total in sums.items()}
    variances = {name: (squares[name] - groups * means[name] ** 2) / (groups - 1) for name in means}

    def scale(weights):
        noise = sum((weights[name] * value).sum().item() for name, value in variances.items())
        signal = sum((weights[name] * (means[name] ** 2 - value / groups)).sum().item()
                     for name, value in variances.items())
        return size * noise / signal

    moments = second_moments(given.checkpoint, model)
    spread = np.mean([nuclear_norm(gradients[name] - means[name] for name in matrices) for gradients in kept])
    print(json.dumps({
        'euclidean': scale({name: torch.ones_like(mean) for name, mean in means.items()}),
        'adamw': moments and scale({name: (v > 0) / (v + EPS ** 2) for name, v in moments.items()}),
        'nuclear': size * (spread / nuclear_norm(means[name] for name in matrices)) ** 2}))


if __name__ == '__main__': main()
