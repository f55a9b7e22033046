def open_judge(*a, **k):
    raise NotImplementedError


def open_embedder(*a, **k):
    raise NotImplementedError
