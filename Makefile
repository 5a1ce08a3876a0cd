# `make demo` and `make test` do all their set-up; everything else follows from them.

VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: protos
protos:
	python -m grpc_tools.protoc -Iprotos --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. protos/chunkmesh/v1/*.proto
