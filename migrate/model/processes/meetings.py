"""Names of collectives: of torch.distributed, with parameters, and of torch_xla."""

from __future__ import annotations

from migrate.catalogue.words import words

# Parameters as in torch 2.9; the first names of the tensor collectives are those of the tensors.
TENSORS = {
    "all_reduce": ("tensor", "op", "group", "async_op"),
    "reduce": ("tensor", "dst", "op", "group", "async_op", "group_dst"),
    "broadcast": ("tensor", "src", "group", "async_op", "group_src"),
    "all_gather": ("tensor_list", "tensor", "group", "async_op"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor", "group", "async_op"),
    "gather": ("tensor", "gather_list", "dst", "group", "async_op", "group_dst"),
    "scatter": ("tensor", "scatter_list", "src", "group", "async_op", "group_src"),
    "reduce_scatter": ("output", "input_list", "op", "group", "async_op"),
    "reduce_scatter_tensor": ("output", "input", "op", "group", "async_op"),
    "all_to_all": ("output_tensor_list", "input_tensor_list", "group", "async_op"),
    "all_to_all_single": (
        "output",
        "input",
        "output_split_sizes",
        "input_split_sizes",
        "group",
        "async_op",
    ),
}
OBJECTS = {
    "all_gather_object": ("object_list", "obj", "group"),
    "gather_object": ("obj", "object_gather_list", "dst", "group", "group_dst"),
    "broadcast_object_list": ("object_list", "src", "group", "device", "group_src"),
    "scatter_object_list": (
        "scatter_object_output_list",
        "scatter_object_input_list",
        "src",
        "group",
        "group_src",
    ),
}
# Collectives after which the first argument is the same on all replicas.
EQUALIZE = frozenset(
    {
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce"),
        *("broadcast", "broadcast_object_list"),
    }
)
# Collectives of torch_xla.core.xla_model.
OF_XLA = words(
    "all_gather all_reduce all_to_all broadcast_master_param collective_broadcast "
    "collective_permute mesh_reduce reduce_scatter rendezvous"
)
# Collectives of mpi4py's communicators; the world communicator becomes that of the replicas.
OF_MPI = words(
    "Barrier Allreduce Bcast allgather allreduce alltoall barrier bcast gather reduce scatter"
)
MPI_WORLD = "mpi4py.MPI.COMM_WORLD"
