"""The public projects, and what makes the training of each a matter of a minute on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import data


@dataclass(frozen=True)
class Project:
    """One project, and how its training is started.

    Attributes:
        repository: OWNER+NAME, the folder of its checkout.
        script: what trains, in it.
        args: of the script; `{data}` is the folder that `prepare` fills.
        prepare: makes what the script reads, given the copy of the project and the folder for data.
        to_prove: options of `migrate prove`.
        edited: a word for it, where `prepare` edits the original by hand as a finding says.
        stands_in: what the harness offers in place of what the script would find elsewhere.
        seconds: that each run may take.
    """

    repository: str
    script: str
    args: str
    prepare: Callable[[Path, Path], None]
    to_prove: str = ""
    edited: str = ""
    stands_in: str = ""
    seconds: int = 580

    @property
    def name(self) -> str:
        """The name of the repository, and whether it is edited."""
        return self.repository.partition("+")[2] + self.edited


EDM = Project(
    "NVlabs+edm",
    "train.py",
    # Its shortest run is a thousand images; the rate warms up over ten million of them.
    "--outdir=out --data={data}/images --arch=ddpmpp --cbase=8 --cres=1,1 --batch=32 --batch-gpu=8 "
    "--duration=0.001 --tick=1 --snap=1 --dump=1 --seed=1 --lr=100 --augment=0",
    data.small_images,
    to_prove="--steps 3",
    stands_in="images",
    seconds=1800,
)


PROJECTS = (
    Project(
        "facebookresearch+DiT",
        "train.py",
        "--data-path {data}/images/train --model DiT-T/8 --image-size 256 --num-classes 2 --epochs 1 "
        "--global-batch-size 4 --num-workers 0 --log-every 2 --ckpt-every 2",
        data.images,
        stands_in="timm: its layers; diffusers: a VAE of one convolution; a DiT of two blocks; images",
    ),
    Project(
        "facebookresearch+mae",
        "main_pretrain.py",
        "--data_path {data}/images --model mae_tiny --input_size 64 --batch_size 2 --epochs 1 "
        "--warmup_epochs 0 --num_workers 0 --output_dir out --log_dir out",
        data.images,
        stands_in="timm: its layers; tensorboard: a writer; a ViT of two blocks; images",
    ),
    Project(
        "karpathy+llama2.c",
        "train.py",
        "--vocab_source=custom --vocab_size=64 --max_seq_len=16 --batch_size=2 --dim=32 --n_layers=2 "
        "--n_heads=2 --n_kv_heads=2 --gradient_accumulation_steps=4 --max_iters=4 --eval_interval=2 "
        "--eval_iters=2 --warmup_iters=1 --compile=False",
        data.tokens,
        stands_in="tokens",
    ),
    Project(
        "jik876+hifi-gan",
        "train.py",
        "--config {data}/config.json --input_wavs_dir {data} --input_training_file {data}/training.txt "
        "--input_validation_file {data}/validation.txt --training_epochs 3 --stdout_interval 1 "
        "--checkpoint_interval 2 --summary_interval 1 --validation_interval 2",
        data.sounds,
        stands_in="librosa: a filter bank; tensorboard: a writer; torch.stft as before torch 2; sounds",
        seconds=2400,
    ),
    EDM,
    replace(EDM, prepare=data.small_images_and_edit, edited="-edited"),
    Project(
        "facebookresearch+detr",
        "main.py",
        "--coco_path {data} --backbone resnet18 --enc_layers 1 --dec_layers 2 --dim_feedforward 32 "
        "--hidden_dim 32 --nheads 2 --num_queries 6 --batch_size 2 --epochs 1 --num_workers 0 "
        "--output_dir out",
        data.boxes,
        stands_in="torchvision's resnet18: not downloaded; images of 64 x 64; boxes",
    ),
    Project(
        "microsoft+Swin-Transformer",
        "main.py",
        "--cfg configs/swin/swin_tiny_patch4_window7_224.yaml --data-path {data}/images --batch-size 2 "
        "--output out --tag tried --opts DATA.IMG_SIZE 56 DATA.NUM_WORKERS 0 MODEL.SWIN.EMBED_DIM 16 "
        "MODEL.SWIN.DEPTHS [1,1] MODEL.SWIN.NUM_HEADS [2,2] TRAIN.EPOCHS 1 TRAIN.WARMUP_EPOCHS 0 "
        "PRINT_FREQ 1",
        data.images,
        stands_in="timm: its layers, losses, schedules, mixup and transforms; images",
    ),
    Project(
        "FoundationVision+VAR",
        "train.py",
        "--data_path={data}/images --pn=1_2_3 --depth=2 --bs=8 --ep=2 --seed=1 --tblr=1e-3 --fuse=False",
        data.images_and_vae,
        stands_in="the VAE: small and not trained; tensorboard: a writer; images",
        seconds=1800,
    ),
)
