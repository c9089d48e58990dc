"""Functions for --session-sample-picker-path."""


def drop_retries(leaf_samples, session_metadata):
    """Leaves that no later answer to the same parent replaced; longest paths first."""
    latest = {}
    for node in session_metadata["tree"]["nodes"]:
        if node["parent"] is not None:
            latest[node["parent"]] = max(latest.get(node["parent"], -1), node["id"])

    def is_kept(leaf):
        return leaf["parent"] is None or latest[leaf["parent"]] == leaf["node_id"]

    kept = [s for s in leaf_samples if is_kept(s.metadata["leaf"])]
    return sorted(kept, key=_length_and_id, reverse=True)


def keep_all(leaf_samples, session_metadata):
    return list(leaf_samples)


def _length_and_id(sample):
    leaf = sample.metadata["leaf"]
    return len(leaf["path_node_ids"]), leaf["node_id"]
