/**
 * A persistence layer for the idempotency utility of AWS Lambda Powertools: its functions run once by claims of Oncegate. Copy this file,
 * and give `makeIdempotent` a `new OncegatePersistenceLayer(client)`.
 */

import {
  IdempotencyItemAlreadyExistsError,
  IdempotencyItemNotFoundError,
  IdempotencyRecordStatus,
} from "@aws-lambda-powertools/idempotency";
import { BasePersistenceLayer, IdempotencyRecord } from "@aws-lambda-powertools/idempotency/persistence";
import { type Client, type Duplicate, Grant } from "@oncegate/client";

type Data = IdempotencyRecord["responseData"];
interface Stored {
  data: Data;
  hash: string;
  expires: number;
}

export class OncegatePersistenceLayer extends BasePersistenceLayer {
  private readonly grants = new Map<string, Grant>();

  constructor(
    private readonly client: Client,
    private readonly operation = "powertools",
  ) {
    super();
  }

  protected async _putRecord(record: IdempotencyRecord): Promise<void> {
    const { idempotencyKey: key, inProgressExpiryTimestamp: ends } = record;
    const terms = {
      retentionMs: this.getExpiresAfterSeconds() * 1000,
      // A function that is killed frees its key when its time is over.
      ...(ends !== undefined && { leaseMs: Math.max(1, ends - Date.now()) }),
    };
    const found = await this.client.claim(this.operation, { key }, terms);
    if (found instanceof Grant) this.grants.set(key, found);
    else if (found.kind === "duplicate") throw new IdempotencyItemAlreadyExistsError("claimed before", recordOf(key, found));
    else throw new Error(`the key was claimed with other terms: ${found.code}`);
  }

  protected async _updateRecord({
    idempotencyKey: key,
    responseData,
    payloadHash,
    expiryTimestamp,
  }: IdempotencyRecord): Promise<void> {
    const stored = { data: responseData ?? null, hash: payloadHash ?? "", expires: expiryTimestamp ?? 0 };
    await this.taken(key)?.succeed(JSON.parse(JSON.stringify(stored)));
  }

  /** The function has thrown. The utility lets it run again. */
  protected async _deleteRecord({ idempotencyKey: key }: IdempotencyRecord): Promise<void> {
    await this.taken(key)?.fail();
  }

  protected async _getRecord(key: string): Promise<IdempotencyRecord> {
    const record = await this.client.lookup(this.client.globalId(this.operation, { key }));
    if (!record) throw new IdempotencyItemNotFoundError();
    return recordOf(key, record as unknown as Duplicate);
  }

  private taken(key: string): Grant | undefined {
    const grant = this.grants.get(key);
    this.grants.delete(key);
    return grant;
  }
}

/** An unknown outcome counts as in progress: it does not run again until its effect was looked up. */
function recordOf(idempotencyKey: string, { state, result }: Pick<Duplicate, "state" | "result">): IdempotencyRecord {
  if (state !== "succeeded") return new IdempotencyRecord({ idempotencyKey, status: IdempotencyRecordStatus.INPROGRESS });
  const { data, hash, expires } = (result ?? {}) as unknown as Partial<Stored>;
  const stored = { responseData: data as Data, payloadHash: hash ?? "", ...(expires && { expiryTimestamp: expires }) };
  return new IdempotencyRecord({ idempotencyKey, status: IdempotencyRecordStatus.COMPLETED, ...stored });
}
