// An error with a message for the person who made the request, like the server's: { message, param, code }.
export class RequestError extends Error {
  constructor(message, { status = 400, param = null, code = null } = {}) {
    super(message);
    this.name = "RequestError";
    this.status = status;
    this.param = param;
    this.code = code;
  }
}
