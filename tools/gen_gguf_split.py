#!/usr/bin/env python3
"""Writes tests/golden/formats/gguf/split-0000N-of-00003.gguf: the model of qwen3-q8_0.gguf in three
files, by the writer of gguf-py.

    PYTHONPATH=llama.cpp/gguf-py python3 tools/gen_gguf_split.py
"""
import pathlib

from gguf import GGUFReader, GGUFValueType, GGUFWriter

DIR = "tests/golden/formats/gguf/"


def value(field):
    if field.types[0] == GGUFValueType.ARRAY:
        items = [field.parts[i] for i in field.data]
        if field.types[-1] == GGUFValueType.STRING:
            return [bytes(i).decode("utf-8") for i in items]
        return [i.tolist()[0] for i in items]
    part = field.parts[field.data[0]]
    return bytes(part).decode("utf-8") if field.types[0] == GGUFValueType.STRING else part.tolist()[0]


def main():
    reader = GGUFReader(DIR + "qwen3-q8_0.gguf")
    arch = value(reader.fields["general.architecture"])
    writer = GGUFWriter(None, arch, split_max_tensors=-(-len(reader.tensors) // 3))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value(field), field.types[0], sub_type=sub)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file(pathlib.Path(DIR + "split.gguf"))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
