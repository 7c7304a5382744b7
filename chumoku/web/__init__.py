"""A model as one web page: weights, tokenizer and an engine in one HTML file that needs no server.

    chumoku convert runs/demo/last demo.html --to web

Python, in this folder                                     JavaScript, in chumoku/viewer/in_page/

    container.py        model, tokenizers → bytes          container.js         bytes → config, tensors, tokenizers
    derived_settings.py config, frequencies, buckets
    build_wasm.py       native/step.cpp → wasm/step.wasm   wasm/                the fast engine
                                                           nn/, model.js        its twin in plain JavaScript
    tokenizer_data.py   what a tokenizer needs             tokenizers/, text/   text ↔ tokens, sentences
    generation_data.py  sampling defaults, chat pattern    decoding/            sampling, beam search, translation, chat
                                                           look/                what the view "look" shows
    payload.py          bytes → text in a page             payload.js           text → bytes
    page.py             modules, payload → HTML            integrity.js         the page checks that it is whole
                                                           api.js, worker.js    the views' requests, answered here
    checks.py           inputs and Python's outputs        certificate.js       the page's outputs, compared
    certificate.py      the page in Chromium against Python
    export.py           all of it: chumoku convert --to web

The views are those of the server's page, unchanged.
"""
