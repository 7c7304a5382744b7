// The texts of attention maps.
export const strings = {
  en: {
    map_which: "Map",
    map_kind_encoder: "Encoder",
    map_kind_decoder: "Decoder (masked)",
    map_kind_cross: "Decoder → source",
    map_kind_rollout: "Rollout",
    "map_kind_rollout-encoder": "Rollout, encoder",
    "map_kind_rollout-cross": "Rollout → source",
    map_label: "Attention of layer {layer}, head {head}; arrow keys move from cell to cell",
    map_hint: "Each row is a query token, each column a key token.",
    map_says: "{row} attends to {column}: {weight}",
  },
  ja: {
    map_which: "アテンションマップ",
    map_kind_encoder: "エンコーダ",
    map_kind_decoder: "デコーダ（マスクあり）",
    map_kind_cross: "デコーダ → 入力文",
    map_kind_rollout: "ロールアウト",
    "map_kind_rollout-encoder": "ロールアウト（エンコーダ）",
    "map_kind_rollout-cross": "ロールアウト → 入力文",
    map_label: "層 {layer}・ヘッド {head} のアテンション。矢印キーでマスを移動できます",
    map_hint: "行が注目する側（クエリ）、列が注目される側（キー）です。",
    map_says: "{row} → {column}：{weight}",
  },
};
