"""Functions for --session-sample-postprocessor-path."""

_SERVER_KEYS = ("accumulated_token_ids", "tito_session_mismatch", "leaf")


def assign_reward(samples, trajectory_reward):
    for sample in samples:
        sample.reward = trajectory_reward


def mask_shared(samples, nodes):
    """An answer on several paths is trained on the one whose leaf is the oldest."""
    owner = {}
    for sample in samples:
        leaf = sample.metadata["leaf"]
        for node in leaf["path_node_ids"]:
            owner[node] = min(owner.get(node, leaf["node_id"]), leaf["node_id"])
    for sample in samples:
        leaf = sample.metadata["leaf"]
        start = len(sample.tokens) - sample.response_length
        for node in leaf["path_node_ids"]:
            if owner[node] == leaf["node_id"]:
                continue
            begin, end = (min(max(at - start, 0), sample.response_length) for at in nodes[node]["completion_span"])
            sample.loss_mask[begin:end] = [0] * (end - begin)


def default_postprocess(leaf_samples, session_metadata):
    """Masks shared answers; the agent's metadata and its reward become those of every sample."""
    mask_shared(leaf_samples, {node["id"]: node for node in session_metadata["tree"]["nodes"]})
    agent = session_metadata.get("agent") or {}
    for sample in leaf_samples:
        own = {key: sample.metadata[key] for key in _SERVER_KEYS if key in sample.metadata}
        sample.metadata = {**sample.metadata, **agent, **own}
    if agent.get("reward") is not None:
        assign_reward(leaf_samples, agent["reward"])
    return leaf_samples
