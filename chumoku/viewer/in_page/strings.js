// The texts of a page that runs its model itself.
export const strings = {
  en: {
    page_opening: "Opening … {done} of {total} MB",
    page_preparing: "Preparing the model …",
    page_damaged: "This page is damaged or incomplete, so it answers nothing. Get the file again.",
    page_failed: "The model cannot be opened in this browser: {message}",
    page_old: "This browser is too old for this page. Open it in a current version of Chrome, Edge, Firefox or Safari.",
    page_stopped: "The model has stopped. Your text is kept. Open the page again to continue.",
    page_local: "Everything is computed on this device. Nothing is sent.",
  },
  ja: {
    page_opening: "開いています… {total} MB 中 {done} MB",
    page_preparing: "モデルを準備しています…",
    page_damaged: "このページは壊れているか途中で切れているため、モデルを動かせません。ファイルを入手し直してください。",
    page_failed: "このブラウザではモデルを開けません：{message}",
    page_old: "このブラウザは古いため、このページを開けません。Chrome、Edge、Firefox、Safari の新しい版で開いてください。",
    page_stopped: "モデルが停止しました。入力した文は残っています。続けるには、ページを開き直してください。",
    page_local: "計算はすべてこの端末で行われ、何も送信されません。",
  },
};
