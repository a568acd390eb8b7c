"""What a checkpoint needs beside its tensors: whole files, all ranks' agreement, random states."""
