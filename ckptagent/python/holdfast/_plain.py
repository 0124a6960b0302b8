"""Decides which tensors can be kept and restored, and refuses the others with their names."""


def why_not(torch, t):
    """Why a tensor of a subclass cannot be kept; "" if it can."""
    kind = type(t)
    if isinstance(t, torch.nn.parameter.UninitializedTensorMixin):
        return "is a %s, which has no data yet: run the lazy module once before the first save" % kind.__name__
    own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # its data lies elsewhere, or it has none
    if own or hasattr(kind, "__tensor_flatten__"):
        return "is a %s; only plain tensors and DTensors can be kept" % kind.__name__
    return ""


def can_copy(torch, dtype):
    """Whether this PyTorch can copy elements of a dtype; of some, such as int4, it has only the name."""
    try:
        torch.empty(1, dtype=dtype, device="cpu").copy_(torch.empty(1, dtype=dtype, device="cpu"))
    except (RuntimeError, TypeError):
        return False
    return True


def writable(torch, t):
    """Whether a tensor can be changed in place: it shows no element at several places (expand), and is no inference tensor
    outside inference mode."""
    if isinstance(t, torch.nn.parameter.UninitializedTensorMixin):
        return True  # as far as torch can tell
    if t.is_inference() and not torch.is_inference_mode_enabled():
        return False
    if t.is_nested or t.layout is not torch.strided:
        return True
    return not any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride()))
