"""Aᵢⱼ: i is the row (行, horizontal), j the column (列, vertical)"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words

MATRIX = [[1, 10], [2, 20], [3, 30], [4, 40]]
CALLED = {"行": 4, "列": 2}  # the note calls this matrix 4行2列


def run(budget: Budget) -> Outcome:
    matrix = torch.tensor(MATRIX)
    horizontal, vertical = len(list(matrix)), len(list(matrix.T))
    third_first = int(matrix[3 - 1, 1 - 1])
    numbers: dict[str, Any] = {
        "horizontal": horizontal,
        "vertical": vertical,
        "called": CALLED,
        "element_3_1": third_first,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The matrix has {horizontal} horizontal and {vertical} vertical lines, and the note calls it 4行2列: so "
            f"the horizontal ones are 行. Its example agrees (3行1列 is {third_first}); only the definition is "
            "swapped.",
            f"この行列には横の並びが {horizontal} 本、縦の並びが {vertical} 本あり、ノートはこれを4行2列と呼んでいま"
            f"す。つまり横の並びが「行」です。例(3行1列目は {third_first})も正しく、定義の文だけが入れ替わっています。",
        ),
        correction=Correction(
            "横 = 列, 縦 = 行",
            "横 = 行, 縦 = 列",
            Words(
                "A mnemonic: the character 行 contains two horizontal strokes, 列 two vertical ones.",
                "行の字の横二本、列の字の縦二本で覚えられます。",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["horizontal"] == numbers["called"]["列"] else FAILS
