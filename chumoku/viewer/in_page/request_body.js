// Checks of request bodies, with the server's sentences: the first wrong field is named.
//
//   const Look = { text: text({ min: 1 }), layer: optional(integer({ min: 0, max: 5 })), lens: optional(boolean, true) };
//   checkBody(Look, body) → the body with defaults, or a RequestError
//
// A type is a function value → [{ path, message }], empty if the value is valid.
import { didYouMean } from "./did_you_mean.js";
import { RequestError } from "./errors.js";

const wrong = (message, path = "") => [{ path, message }];
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export function text({ min = 0, max = Infinity } = {}) {
  return (value) => {
    if (typeof value !== "string") return wrong("input should be a valid string");
    const length = value.length <= min || value.length > max ? [...value].length : value.length;
    if (length < min) return wrong(`string should have at least ${count(min, "character")}`);
    return length > max ? wrong(`string should have at most ${count(max, "character")}`) : [];
  };
}

export function integer({ min = -Infinity, max = Infinity } = {}) {
  return (value) => {
    if (!Number.isSafeInteger(value)) return wrong("input should be a valid integer");
    if (value < min) return wrong(`input should be greater than or equal to ${min}`);
    return value > max ? wrong(`input should be less than or equal to ${max}`) : [];
  };
}

export const boolean = (value) => (typeof value === "boolean" ? [] : wrong("input should be a valid boolean"));

export function oneOf(...names) {
  const quoted = names.map((name) => `'${name}'`);
  const known = `${quoted.slice(0, -1).join(", ")} or ${quoted.at(-1)}`;
  return (value) => (names.includes(value) ? [] : wrong(`input should be ${known}`));
}

export function list(type, { min = 0, max = Infinity } = {}) {
  return (value) => {
    if (!Array.isArray(value)) return wrong("input should be a valid array");
    if (value.length > max) return wrong(`list should have at most ${count(max, "item")} after validation, not ${value.length}`);
    const errors = value.flatMap((one, at) => type(one).map(({ path, message }) => ({ path: `[${at}]${path}`, message })));
    const short = value.length < min;
    return short ? wrong(`list should have at least ${count(min, "item")} after validation, not ${value.length}`) : errors;
  };
}

/** A value of any of these types. The path of an error inside one of them is left out, as the server does. */
export function either(...types) {
  return (value) => {
    const errors = types.map((type) => type(value));
    return errors.some((one) => !one.length) ? [] : errors.flat().map(({ message }) => ({ path: "", message }));
  };
}

export function object(schema) {
  return (value) => {
    if (!isObject(value)) return wrong("input should be an object");
    const unknown = Object.keys(value).filter((name) => !Object.hasOwn(schema, name));
    const errors = Object.entries(schema).flatMap(([name, type]) => checkField(type, value, name));
    return [...unknown.map((name) => ({ path: `.${name}`, message: "extra inputs are not permitted" })), ...errors];
  };
}

/** A field that may be left out or null; it then has the default. */
export function optional(type, fallback = null) {
  const check = (value) => (value === undefined || (value === null && fallback === null) ? [] : type(value));
  return Object.assign(check, { fallback });
}

function checkField(type, body, name) {
  if (!Object.hasOwn(body, name) && !("fallback" in type)) return [{ path: `.${name}`, message: "field required" }];
  return type(body[name]).map(({ path, message }) => ({ path: `.${name}${path}`, message }));
}

/** The body with the defaults of its optional fields; raises RequestError for the first wrong field. */
export function checkBody(schema, body) {
  if (!isObject(body)) throw new RequestError("The body is not a valid JSON object: input should be an object.");
  const names = Object.keys(schema);
  const unknown = Object.keys(body).find((name) => !Object.hasOwn(schema, name));
  if (unknown !== undefined) {
    const param = printable(unknown);
    const hint = didYouMean(unknown, names, `Known fields: ${names.join(", ")}.`);
    throw new RequestError(`There is no field '${param}'. ${hint}`, { param });
  }
  for (const [name, type] of Object.entries(schema)) refuse(name, checkField(type, body, name));
  const defaults = Object.entries(schema).filter(([name, type]) => body[name] === undefined && "fallback" in type);
  return { ...body, ...Object.fromEntries(defaults.map(([name, type]) => [name, type.fallback])) };
}

function refuse(param, errors) {
  if (!errors.length) return;
  const path = printable(errors[0].path.slice(1));
  if (errors[0].message === "field required") throw new RequestError(`The field '${path}' is missing.`, { param });
  const reasons = [...new Set(errors.map((one) => one.message))].slice(0, 3).join("; or ");
  throw new RequestError(`The field '${path}' is not valid: ${reasons}.`, { param });
}

const MAX_NAME = 80;

function printable(name) {
  return [...name].slice(0, MAX_NAME).join("").replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "�");
}
