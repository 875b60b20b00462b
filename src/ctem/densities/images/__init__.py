"""Energies of binary images: a U-Net, its first-order conditionals, and objectives along noise levels."""
