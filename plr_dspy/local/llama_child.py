"""The child process of the local server, run as a script.

The script reads the server's settings from stdin as a line of JSON, and writes the server's address
or an error to stdout as JSON. The process exits when stdin closes, so that it never outlives its
parent.
"""

import json
import os
import sys


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["sys_path"]
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""  # Do not let web pages in a local browser read answers.
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["context_length"] * settings["parallel"]
    params.cache_prompt = True
    # Turn off the RAM cache: it grows to gigabytes, and the slots already cache prefixes.
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = settings["num_threads"]
    params.cpuparams_batch.n_threads = settings["num_threads"]
    params.verbosity = 1
    try:
        server = xllamacpp.Server(params)
        reply = {"address": server.listening_address}
    except RuntimeError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)
    os.dup2(2, 1)
    sys.stdin.read()
    # Skip the server's destructor, which would wait for running calls.
    os._exit(0)


if __name__ == "__main__":
    main()
