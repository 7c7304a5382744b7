// The words of maps, wherever one is shown.
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
    map_hint: "A row is who looks, a column what is looked at.",
    map_says: "{row} looks at {column}: {weight}",
  },
  ja: {
    map_which: "地図",
    map_kind_encoder: "エンコーダ",
    map_kind_decoder: "デコーダ（マスクあり）",
    map_kind_cross: "デコーダ → 入力文",
    map_kind_rollout: "ロールアウト",
    "map_kind_rollout-encoder": "ロールアウト（エンコーダ）",
    "map_kind_rollout-cross": "ロールアウト → 入力文",
    map_label: "層 {layer}・ヘッド {head} の注意。矢印キーでマスを移動",
    map_hint: "行が見る側、列が見られる側です。",
    map_says: "{row} → {column}：{weight}",
  },
};
