/** For Nest on the Express platform: `app.use(idempotent(options))`, or in a module `consumer.apply(idempotent(options)).forRoutes(…)`. */

export { type IdempotencyOptions, idempotent, type Request } from "./express.js";
