/** Keeps a hang-up of the caller from a handler that runs: the repeat gets its response. */

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** A reader that takes nothing for so long is as good as gone. */
const STALLED_MS = 30_000;

type Emit = (event: string | symbol, ...args: unknown[]) => boolean;
type Destroy = (error?: Error) => unknown;

interface Watcher {
  /** The caller has disconnected. */
  gone(): void;
  /** The handler, or the code that answers its errors, has broken off the response. False if the run continues all the same. */
  broken(): boolean;
}

/** Own properties that stand before the methods of an object until `restore`. */
class Overrides {
  private readonly restores: (() => void)[] = [];

  set<Target extends object>(target: Target, name: string, descriptor: PropertyDescriptor): void {
    const before = Object.getOwnPropertyDescriptor(target, name);
    Object.defineProperty(target, name, { configurable: true, enumerable: before?.enumerable ?? false, ...descriptor });
    this.restores.push(() => {
      if (before) Object.defineProperty(target, name, before);
      else delete (target as Record<string, unknown>)[name];
    });
  }

  restore(): void {
    for (const restore of this.restores.splice(0).reverse()) restore();
  }
}

export class Guard {
  isGone = false;
  /** The response was ended, and its end is held back until the report. */
  isHeld = false;
  private readonly overrides = new Overrides();
  /** Events during the run, for delivery at its end. */
  private readonly later: (() => void)[] = [];
  private stall: NodeJS.Timeout | undefined;
  private isReleased = false;
  private guards: Set<Guard> | null = null;

  constructor(
    private readonly request: IncomingMessage,
    private readonly response: ServerResponse,
    private readonly watcher: Watcher,
    stopWhenGone: boolean,
  ) {
    if (stopWhenGone) {
      response.once("close", () => {
        if (response.writableFinished || this.isReleased) return;
        this.leave();
        this.watcher.broken();
      });
      return;
    }
    this.guardRequest();
    this.guardResponse();
    this.guardSocket(request.socket);
  }

  /** Lets everything through again, and delivers the events of the run. */
  release(): void {
    if (this.isReleased) return;
    this.isReleased = true;
    clearTimeout(this.stall);
    this.guards?.delete(this);
    this.overrides.restore();
    for (const tell of this.later.splice(0)) tell();
  }

  /** A write that was not accepted at once: a caller that stalls is cut off, so that the handler can continue. */
  stalled(): void {
    if (this.stall || this.isGone) return;
    this.response.once("drain", () => this.moved());
    this.stall = setTimeout(() => {
      this.leave();
      this.request.socket?.destroy(new Error("the caller takes no data"));
    }, STALLED_MS).unref();
  }

  private moved(): void {
    clearTimeout(this.stall);
    this.stall = undefined;
  }

  private leave(): void {
    if (this.isGone || this.isReleased) return;
    this.isGone = true;
    clearTimeout(this.stall);
    this.watcher.gone();
  }

  private guardRequest(): void {
    const { request, overrides } = this;
    const destroy = request.destroy.bind(request) as Destroy;
    const value = (error?: NodeJS.ErrnoException) => {
      // Same actions as Node.js when the connection closes. A stream that has been read to its end destroys itself without an
      // error.
      if (error?.code !== "ECONNRESET") return destroy(error);
      this.leave();
      this.later.push(() => void destroy(error));
      return request;
    };
    overrides.set(request, "destroy", { value, writable: true });
    if (request.httpVersionMajor < 2) return;
    const emit = request.emit.bind(request) as Emit;
    const guarded: Emit = (event, ...args) => {
      if (event === "aborted") this.leave();
      if (!this.isGone || (event !== "aborted" && event !== "close")) return emit(event, ...args);
      this.later.push(() => void emit(event, ...args));
      return true;
    };
    overrides.set(request, "emit", { value: guarded, writable: true });
  }

  private guardResponse(): void {
    const { response, overrides } = this;
    const emit = response.emit.bind(response) as Emit;
    // A stream of HTTP/2 that its caller has closed says that its response is finished.
    const held = ["close", "error", ...(this.request.httpVersionMajor >= 2 ? ["finish"] : [])];
    const guarded: Emit = (event, ...args) => {
      if (event === "close" && !response.writableFinished) this.leave();
      if (!this.isGone || !held.includes(String(event))) return emit(event, ...args);
      if (event !== "error") this.later.push(() => void emit(event, ...args));
      return true;
    };
    overrides.set(response, "emit", { value: guarded, writable: true });
    const destroy = response.destroy.bind(response) as Destroy;
    const destroyed = (error?: Error) => {
      if (response.writableFinished || this.watcher.broken()) this.release();
      return destroy(error);
    };
    overrides.set(response, "destroy", { value: destroyed, writable: true });
    // Set by Node.js when the connection closes; streams that are piped into the response look at them.
    for (const name of ["destroyed", "_closed"]) {
      if (!Object.hasOwn(response, name)) continue;
      let real = (response as unknown as Record<string, unknown>)[name];
      overrides.set(response, name, {
        get: () => (this.isGone ? false : real),
        set: (now: unknown) => {
          real = now;
          this.later.push(() => {
            (response as unknown as Record<string, unknown>)[name] = now;
          });
        },
      });
    }
  }

  /** Returns true if the socket must be destroyed later: the guard still holds back data that would be sent by now without it. */
  destroysLater(socket: Socket, destroy: () => void): boolean {
    if (this.isGone || socket.readableEnded) return false;
    if (this.isHeld) this.later.push(destroy);
    else if (this.response.headersSent) this.watcher.broken();
    return this.isHeld;
  }

  /** Express's last error handler destroys the socket when the head was sent. */
  private guardSocket(socket: Socket | null): void {
    if (!socket || this.request.httpVersionMajor >= 2) return;
    this.guards = guardsOf(socket);
    this.guards.add(this);
  }
}

const sockets = new WeakMap<Socket, Set<Guard>>();

/** The guards of all requests on a socket: pipelined requests share it. */
function guardsOf(socket: Socket): Set<Guard> {
  const known = sockets.get(socket);
  if (known) return known;
  const guards = new Set<Guard>();
  sockets.set(socket, guards);
  const destroy = socket.destroy.bind(socket) as Destroy;
  const value = (error?: Error) => {
    // An error, or an end by the peer, is none of a handler.
    const isLater = !error && [...guards].some((guard) => guard.destroysLater(socket, () => void destroy()));
    return isLater ? socket : destroy(error);
  };
  Object.defineProperty(socket, "destroy", { configurable: true, enumerable: false, writable: true, value });
  return guards;
}

/** For the recorder, which puts its own methods before those of the response. */
export { Overrides };
