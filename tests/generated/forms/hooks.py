"""A check for schemathesis: what a document calls a valid request is not refused for its form."""

import re

import schemathesis

# Refused for what they mean, not for their form.
MEANINGS = {"contents_empty", "contents_not_canonical", "contents_mismatch", "fingerprint_mismatch"}

# Rules that a schema cannot express: bounds that operators set, existing names, and fields that depend on others.
RELATIONS = re.compile(
    r" is from \d+m?s to |retention_max|go with the outcome `success` only|has no engine `|differ; send one of them|"
    r"no app `|does not know|must not begin with `observed-`|occurs as a string in|only shared holds have a limit|"
    r"is not the ID of an entry|is earlier than `to`|a hold takes from|only the action `hold` has a time|gateways never switch this chain"
)


@schemathesis.check
def takes_what_its_schema_takes(ctx, response, case):
    if response.status_code not in (400, 422):
        return
    problem = response.json()
    if problem["code"] in MEANINGS or RELATIONS.search(problem["detail"]):
        return
    raise AssertionError(f"{case.method} {case.path} is refused: {problem['code']}: {problem['detail']}")
