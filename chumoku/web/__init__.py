"""A model as one web page: weights, tokenizer and an engine in one HTML file that needs no server.

    chumoku convert runs/demo/last demo.html --to web

    container.py        model and tokenizers → bytes              in_page/container.js      bytes → config, tensors, tokenizers
    build_wasm.py       native/step.cpp → in_page/wasm/step.wasm  in_page/wasm/             the fast engine
                                                                  in_page/nn/, model.js     its twin: every part in plain JavaScript
    tokenizer_data.py   what a tokenizer needs in the page        in_page/tokenizers/       text ↔ tokens
    chat_pattern.py     a chat template as texts around messages  in_page/decoding/         sampling, beam search, translation, chat
                                                                  in_page/look/             what the view "look" shows
    page.py             modules, styles and container → HTML      in_page/api.js, worker.js the views' requests, answered in the page
    certificate.py      the page in Chromium against Python

in_page/ is a folder of chumoku/viewer, whose views the page shows unchanged.
"""
