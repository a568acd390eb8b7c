"""Other libraries on a TPU: those that need CUDA, and those that train by themselves."""

from __future__ import annotations

from migrate.catalogue.entry import CatalogueEntry, Family, OnXla

RAISES, WRONG, WORKS = OnXla.RAISES, OnXla.WRONG, OnXla.WORKS


def _needs_cuda(code: str, packages: str, does: str, native: str) -> tuple[CatalogueEntry, ...]:
    return tuple(
        CatalogueEntry(name, RAISES, native, does=does, code=code) for name in packages.split()
    )


def _trains(
    packages: str, does: str, native: str, code: str = "", *, leaves_script: bool = False
) -> tuple[CatalogueEntry, ...]:
    """Return entries of libraries that train, shard or scale by themselves, for the rule frameworks."""
    return tuple(
        CatalogueEntry(
            name,
            WRONG,
            native,
            does=does,
            code=code,
            rule="frameworks",
            leaves_script=leaves_script,
            stands_for=packages.split()[0],
        )
        for name in packages.split()
    )


# Frameworks with a launcher of their own.
LAUNCHERS = (
    *_trains(
        "accelerate",
        "Accelerate runs on TPUs by itself",
        "`accelerate launch --tpu script.py` imports the script and calls its `main()`; mixed_precision='no' "
        "with torch.autocast('xla', dtype=torch.bfloat16) around the forward pass and the loss, since 'bf16' "
        "makes weights and optimizer state bfloat16 and 'fp16' raises; otherwise leave the script as it is",
        leaves_script=True,
    ),
    *_trains(
        "colossalai",
        "ColossalAI has no TPU backend",
        "XlaFullyShardedDataParallel of torch_xla shards a model",
        "XLA411",
    ),
    *_trains(
        "deepspeed",
        "DeepSpeed has no TPU backend",
        "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel shards as ZeRO-3 does, "
        "torch_xla.distributed.zero_redundancy_optimizer as ZeRO-1",
        "XLA411",
    ),
    *_trains(
        "horovod",
        "Horovod has no TPU backend",
        "wrap the model in DistributedDataParallel on the 'xla' process group; hvd.rank() is "
        "torch_xla.runtime.global_ordinal(), hvd.size() world_size()",
        "XLA411",
    ),
    *_trains(
        "lightning pytorch_lightning",
        "Lightning runs on TPUs by itself",
        "Trainer(accelerator='tpu', devices='auto', precision='32-true'), and so of Fabric, with "
        "torch.autocast('xla', dtype=torch.bfloat16) in the training step: 'bf16-mixed' and '16-mixed' "
        "raise, 'bf16-true' makes weights and optimizer state bfloat16; otherwise leave the script as it is",
        leaves_script=True,
    ),
    *_trains(
        "composer",
        "Composer 0.32 needs torch before 2.7.1, and torch_xla 2.9 needs torch 2.9",
        "a loop of your own with DistributedDataParallel on the 'xla' process group",
        "XLA411",
    ),
    # Helpers of Accelerate that run no training, and work with tensors of XLA.
    *(
        CatalogueEntry(f"accelerate.{name}", WORKS)
        for name in (
            *("init_empty_weights", "big_modeling.init_empty_weights"),
            *("utils.convert_to_fp32", "utils.find_batch_size", "utils.honor_type"),
            *("utils.recursively_apply", "utils.send_to_device", "utils.set_seed"),
        )
    ),
    # Only known to start the replicas.
    CatalogueEntry("ray", WORKS),
)
# Of these what runs the training, and the classes that it trains: a script that uses one stays as it is.
ACCELERATE_STATES = frozenset(
    f"accelerate.{name}"
    for name in (
        *("Accelerator", "accelerator.Accelerator"),
        *("PartialState", "state.PartialState"),
    )
)
_LIGHTNING = ("lightning", "lightning.pytorch", "pytorch_lightning")
RUNNERS = frozenset(
    {"accelerate.Accelerator", "accelerate.accelerator.Accelerator"}
    | {f"{home}.{name}" for home in _LIGHTNING for name in ("Trainer", "cli.LightningCLI")}
    | {f"{home}.Fabric" for home in ("lightning", "lightning.fabric", "lightning_fabric")}
    | {"lightning.fabric.fabric.Fabric", "lightning.pytorch.trainer.Trainer"}
)
LED_CLASSES = frozenset(
    f"{home}.{name}" for home in _LIGHTNING for name in ("LightningModule", "LightningDataModule")
)
# Calls that join the graphs of a batch to one, with as many nodes and edges as these have together, or that
# cut a part of one graph.
GRAPH_BATCHES = frozenset(
    {
        "dgl.batch",
        "dgl.dataloading.DataLoader",
        "dgl.dataloading.GraphDataLoader",
        "torch_geometric.data.Batch.from_data_list",
        "torch_geometric.data.DataLoader",
        "torch_geometric.loader.DataLoader",
        "torch_geometric.loader.ClusterLoader",
        "torch_geometric.loader.GraphSAINTRandomWalkSampler",
        "torch_geometric.loader.LinkNeighborLoader",
        "torch_geometric.loader.NeighborLoader",
        "torch_geometric.loader.RandomNodeLoader",
        "torch_geometric.loader.dataloader.Collater",
        "torch_geometric.loader.dataloader.DataLoader",
    }
)
# Samplers that fill a batch by length: each has as many samples, and pads to as many elements, as its lengths
# say.
BATCHES_BY_LENGTH = frozenset(
    {
        *(
            f"{home}.{name}"
            for home in ("lhotse.dataset", "lhotse.dataset.sampling")
            for name in (
                "BucketingSampler",
                "CutPairsSampler",
                "DynamicBucketingSampler",
                "DynamicCutSampler",
                "SimpleCutSampler",
                "SingleCutSampler",
                "StatelessSampler",
                "WeightedSimpleCutSampler",
            )
        ),
        "speechbrain.dataio.sampler.DynamicBatchSampler",
    }
)
# Features of apex without a counterpart in torch.
_alone = Family("apex", RAISES, "XLA404", "apex-optimizers")
APEX_ALONE = (
    *_alone(
        "optimizers.FusedLAMB optimizers.FusedMixedPrecisionLamb",
        "timm.optim.Lamb runs on XLA as it is",
        does="torch has no LAMB",
    ),
    *_alone(
        "optimizers.FusedNovoGrad",
        "timm.optim.NvNovoGrad is plain Python",
        does="torch has no NovoGrad",
    ),
    *_alone(
        "parallel.LARC", "copy apex/parallel/LARC.py beside the script", does="is plain Python"
    ),
)
# Its uses are reported too, if no rule handles them.
APEX = (
    CatalogueEntry(
        "apex",
        RAISES,
        "torch.autocast('xla', dtype=torch.bfloat16), torch's DDP and torch.optim",
        "shims.autocast(), shims.ddp(model)",
        does="apex needs CUDA",
        code="XLA404",
    ),
    *APEX_ALONE,
)
# Kernels that are downloaded when the script runs.
_HUB = "a kernel of the hub is CUDA code and does not take tensors of XLA"
_hub = Family(
    "kernels",
    RAISES,
    "XLA412",
    does=_HUB,
)
_hub_layers = "leave it out: the layer's own forward is of operations of torch"
HUB_KERNELS = (
    *_hub(
        "get_kernel get_locked_kernel get_local_kernel load_kernel",
        "for attention, torch.nn.functional.scaled_dot_product_attention; else operations of torch",
    ),
    *_hub(
        "kernelize use_kernel_mapping register_kernel_mapping replace_kernel_forward_from_hub "
        "use_kernel_forward_from_hub use_kernel_func_from_hub use_kernelized_func",
        _hub_layers,
    ),
    *Family("transformers.integrations", RAISES, "XLA412", does=_HUB)(
        "use_kernel_forward_from_hub use_kernel_func_from_hub use_kernelized_func "
        "hub_kernels.use_kernel_forward_from_hub hub_kernels.use_kernel_func_from_hub "
        "hub_kernels.use_kernelized_func",
        _hub_layers,
    ),
)
# Evaluators that merge the results of the replicas by a collective of their own.
EVALUATORS = Family("faster_coco_eval.utils.pytorch", RAISES, "XLA811")(
    "FasterCocoEvaluator coco_eval.FasterCocoEvaluator",
    "override it in a subclass, with all_gather_object over a gloo group beside, "
    'dist.new_group(backend="gloo")',
    does="synchronize_between_processes gathers tensors of CUDA or of the host, which raises on XLA",
)
LIBRARIES = (
    *EVALUATORS,
    *LAUNCHERS,
    *_trains(
        "dora.argparse_main dora.distrib.init dora.hydra_main flashy.distrib.init",
        "Dora joins its processes over NCCL: on a TPU that raises, and started once, one chip trains alone",
        "torch.distributed.init_process_group('xla', init_method='xla://') in a worker that "
        "torch_xla.launch starts, in place of init(); flashy.distrib.average_metrics then needs its tensor "
        "on the device",
    ),
    *_trains(
        "fairscale",
        "FairScale has no TPU backend",
        "torch_xla.distributed.fsdp was made from it",
        "XLA411",
    ),
    *_trains(
        "megatron",
        "Megatron-LM has no TPU backend",
        "MaxText and torchprime train such models on TPUs",
        "XLA411",
    ),
    *_trains(
        "mmengine.runner.Runner mmengine.runner.runner.Runner mmengine.runner.FlexibleRunner",
        "the Runner of MMEngine places model and batches itself, and knows no XLA: beside a TPU it trains "
        "on the CPU of the host",
        "a loop of your own around model.train_step or the model's losses, with DistributedDataParallel on "
        "the 'xla' process group",
        "XLA411",
    ),
    *_trains(
        "mmcv.runner.EpochBasedRunner mmcv.runner.IterBasedRunner mmcv.runner.build_runner",
        "the runner of MMCV owns the training loop, and ends no step for XLA",
        "a loop of your own around model.train_step, with DistributedDataParallel on the 'xla' process group",
        "XLA411",
    ),
    *_trains(
        "transformers.Trainer transformers.Seq2SeqTrainer",
        "the Trainer finds a TPU by itself",
        "call this script's main in torch_xla.launch, without fp16=True, which raises, and without "
        "bf16=True, which makes weights and optimizer state bfloat16: "
        "torch.autocast('xla', dtype=torch.bfloat16) in compute_loss; seed before the model is made, the "
        "replicas are not given the same weights; leave the rest as it is",
    ),
    *_trains(
        "ultralytics.utils.torch_utils.autocast",
        "this autocast is for CUDA and runs in float32 on XLA",
        "torch.autocast('xla', dtype=torch.bfloat16)",
    ),
    *_trains("timm.utils.ApexScaler", "apex needs CUDA", "NativeScaler, disabled, as below"),
    *_trains(
        "timm.utils.NativeScaler",
        "timm's NativeScaler makes an enabled GradScaler: each step waits to read a value from the device",
        "after making it, `loss_scaler._scaler = torch.amp.GradScaler('xla', enabled=False)`",
    ),
    *_needs_cuda(
        "XLA401",
        "torch.utils.cpp_extension torch.utils.ffi",
        "CUDA kernels of one's own do not run on a TPU",
        "use the operations of torch",
    ),
    *_needs_cuda(
        "XLA402", "triton", "Triton kernels do not run on a TPU", "torch operations, or Pallas"
    ),
    *_needs_cuda(
        "XLA403",
        "flash_attn flash_attn_interface flash_attn_2_cuda",
        "flash-attn needs CUDA",
        "scaled_dot_product_attention, or torch_xla's flash_attention",
    ),
    *_needs_cuda(
        "XLA405", "bitsandbytes", "bitsandbytes needs CUDA", "torch.optim, and bf16 weights"
    ),
    *_needs_cuda("XLA406", "nvidia.dali", "DALI decodes on GPUs", "a DataLoader with workers"),
    *_needs_cuda(
        "XLA407",
        "pynvml py3nvml nvidia_smi GPUtil gpustat",
        "there is no NVIDIA driver on a TPU host",
        "xm.get_memory_info (raises on the CPU), tpu-info",
    ),
    *_needs_cuda(
        "XLA408",
        "cupy cudf cuml pycuda",
        "needs CUDA",
        "numpy on the host, torch on the device",
    ),
    *_needs_cuda("XLA409", "numba.cuda", "numba's kernels need CUDA", "torch operations"),
    *_needs_cuda(
        "XLA410",
        "xformers transformer_engine tensorrt torch_tensorrt spconv MinkowskiEngine torch_scatter "
        "torch_sparse fused_layer_norm_cuda causal_conv1d mamba_ssm torch_cluster torchsparse "
        "pointnet2_ops liger_kernel cut_cross_entropy fla natten deep_gemm deep_ep flashinfer "
        "sageattention ring_flash_attn tilelang nvdiffrast tinycudann gsplat "
        "diff_gaussian_rasterization flash_mla auto_gptq awq_ext "
        "fused_dense_lib dropout_layer_norm xentropy_cuda_lib rotary_emb selective_scan_cuda "
        "knn_cuda simple_knn iou3d_nms_cuda correlation_cuda raymarching MultiScaleDeformableAttention "
        "causal_conv1d_cuda fast_hadamard_transform fast_hadamard_transform_cuda",
        "its kernels need CUDA",
        "use the operations of torch",
    ),
    *_needs_cuda(
        "XLA410",
        "dgl",
        "its graphs are on the CPU or on CUDA, and move to no other device",
        "layers of torch_geometric, which are operations of torch",
    ),
    *_needs_cuda(
        "XLA410",
        "k2 fast_rnnt",
        "its ragged tensors, graphs and losses are on the CPU or on CUDA, and move to no other device",
        "give it x.cpu(), and move the result back, or a loss of torch",
    ),
    *_needs_cuda(
        "XLA410",
        "torchao.float8 torchao.optim torchao.prototype.low_bit_optim",
        "its kernels need CUDA",
        "bfloat16 weights, and the optimizers of torch.optim",
    ),
    *_needs_cuda(
        "XLA410",
        "adam_atan2 adam_atan2_backend fused_adam_cuda cpu_adam amp_C apex_C",
        "the update of its optimizer is a CUDA kernel",
        "an optimizer of torch.optim, or the same update in operations of torch",
    ),
)
