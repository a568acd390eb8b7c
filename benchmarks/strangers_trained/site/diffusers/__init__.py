"""A stand-in for diffusers: what DiT takes of it, a VAE that encodes images to a distribution."""
