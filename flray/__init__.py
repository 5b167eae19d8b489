"""Which federated-learning method works on this data heterogeneity, at which settings, and how sure are we."""

from flray.torchvision_beside_cpu import install_hook

install_hook()
