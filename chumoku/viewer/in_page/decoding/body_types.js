// Types of fields that only requests to generate text have; the others are in request_body.js.
const wrong = (message, path = "") => [{ path, message }];

/** A number; above: a bound that it must not equal. */
export function number({ min = -Infinity, above = -Infinity, max = Infinity } = {}) {
  return (value) => {
    if (!Number.isFinite(value)) return wrong("input should be a valid number");
    if (value <= above) return wrong(`input should be greater than ${above}`);
    if (value < min) return wrong(`input should be greater than or equal to ${min}`);
    return value > max ? wrong(`input should be less than or equal to ${max}`) : [];
  };
}

/** An object whose values all have this type. */
export function record(type, { max }) {
  return (value) => {
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    if (!isObject) return wrong("input should be a valid dictionary");
    const entries = Object.entries(value);
    const limit = `dictionary should have at most ${max} items after validation`;
    if (entries.length > max) return wrong(`${limit}, not ${entries.length}`);
    return entries.flatMap(([name, one]) => type(one).map(({ path, message }) => ({ path: `.${name}${path}`, message })));
  };
}
