#!/usr/bin/env python3
"""Lists the public items of the crate, one a line, from the JSON that rustdoc writes.

usage: docs/public-api.py target/doc/candle_fused.json > docs/public-api.txt
"""
import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        crate = json.load(file)
    listing = Listing(crate)
    listing.module(crate["index"][str(crate["root"])], crate["index"][str(crate["root"])]["name"])
    print("\n".join(sorted(set(listing.lines))))


class Listing:
    def __init__(self, crate):
        self.index, self.lines, self.seen = crate["index"], [], set()

    def item(self, item_id):
        return self.index.get(str(item_id))

    def module(self, module, path):
        for item_id in module["inner"]["module"]["items"]:
            item = self.item(item_id)
            if item:
                self.visit(item, path)

    def visit(self, item, path):
        kind, inner = next(iter(item["inner"].items()))
        if kind == "use":
            target = self.item(inner["id"]) if inner["id"] is not None else None
            if inner["is_glob"] or target is None:
                self.lines.append(f"{path}: use {inner['source']}{'::*' if inner['is_glob'] else ''}")
            else:
                self.visit({**target, "name": inner["name"]}, path)
            return
        name = f"{path}::{item['name']}"
        if kind == "module":
            if (item["id"], name) not in self.seen:
                self.seen.add((item["id"], name))
                self.module(item, name)
        elif kind == "function":
            self.lines.append(f"fn {name}{signature(inner)}")
        elif kind == "struct":
            self.lines.append(f"struct {name}{generics(inner['generics'])}")
            self.fields(inner["kind"], name)
            self.impls(inner["impls"], name)
        elif kind == "enum":
            self.lines.append(f"enum {name}{generics(inner['generics'])}")
            for variant in map(self.item, inner["variants"]):
                self.lines.append(f"variant {name}::{variant['name']}")
            self.impls(inner["impls"], name)
        elif kind == "trait":
            self.lines.append(f"trait {name}{generics(inner['generics'])}")
            for member in map(self.item, inner["items"]):
                if member and "function" in member["inner"]:
                    self.lines.append(f"fn {name}::{member['name']}{signature(member['inner']['function'])}")
        elif kind == "constant":
            self.lines.append(f"const {name}: {render(inner['type'])}")
        elif kind == "type_alias":
            self.lines.append(f"type {name} = {render(inner['type'])}")
        else:
            self.lines.append(f"{kind} {name}")

    def fields(self, kind, name):
        ids = kind["plain"]["fields"] if "plain" in kind else kind.get("tuple", []) if isinstance(kind, dict) else []
        for field in filter(None, map(self.item, filter(None, ids))):
            if field["visibility"] == "public":
                self.lines.append(f"field {name}.{field['name']}: {render(field['inner']['struct_field'])}")

    def impls(self, ids, name):
        for impl in filter(None, map(self.item, ids)):
            inner = impl["inner"]["impl"]
            if inner["is_synthetic"] or inner["blanket_impl"]:
                continue
            if inner["trait"]:
                if path_of(inner["trait"]) == "StructuralPartialEq":  # comes with every derived PartialEq
                    continue
                self.lines.append(f"impl {path_of(inner['trait'])} for {name}")
                continue
            for member in filter(None, map(self.item, inner["items"])):
                if member["visibility"] != "public":
                    continue
                if "function" in member["inner"]:
                    self.lines.append(f"fn {name}::{member['name']}{signature(member['inner']['function'])}")
                else:
                    self.lines.append(f"{next(iter(member['inner']))} {name}::{member['name']}")


def signature(function):
    sig = function["sig"]
    args = ", ".join("self" if name == "self" else f"{name}: {render(ty)}" for name, ty in sig["inputs"])
    out = f" -> {render(sig['output'])}" if sig["output"] else ""
    unsafe = " unsafe" if function["header"]["is_unsafe"] else ""
    return f"{generics(function['generics'])}({args}){out}{unsafe}"


def generics(generics):
    names = [param["name"] for param in generics["params"] if not ("type" in param["kind"] and param["kind"]["type"].get("is_synthetic"))]
    return f"<{', '.join(names)}>" if names else ""


def path_of(path):
    args = path.get("args")
    name = path.get("path") or path.get("name")
    if not args or "angle_bracketed" not in args:
        return name
    parts = []
    for arg in args["angle_bracketed"]["args"]:
        if arg == "infer":
            parts.append("_")
        else:
            kind, value = next(iter(arg.items()))
            parts.append(render(value) if kind == "type" else value if kind == "lifetime" else value.get("expr", "_"))
    return f"{name}<{', '.join(parts)}>" if parts else name


def render(ty):
    kind, inner = next(iter(ty.items()))
    if kind == "resolved_path":
        return path_of(inner)
    if kind in ("primitive", "generic"):
        return inner
    if kind == "borrowed_ref":
        return f"&{'mut ' if inner['is_mutable'] else ''}{render(inner['type'])}"
    if kind == "raw_pointer":
        return f"*{'mut' if inner['is_mutable'] else 'const'} {render(inner['type'])}"
    if kind == "slice":
        return f"[{render(inner)}]"
    if kind == "array":
        return f"[{render(inner['type'])}; {inner['len']}]"
    if kind == "tuple":
        return f"({', '.join(map(render, inner))})"
    if kind == "impl_trait":
        return "impl " + " + ".join(bound_of(bound) for bound in inner)
    if kind == "dyn_trait":
        return "dyn " + " + ".join(path_of(bound["trait"]) for bound in inner["traits"])
    if kind == "qualified_path":
        return f"{render(inner['self_type'])}::{inner['name']}"
    return kind


def bound_of(bound):
    kind, inner = next(iter(bound.items()))
    return path_of(inner["trait"]) if kind == "trait_bound" else str(inner)


if __name__ == "__main__":
    main()
