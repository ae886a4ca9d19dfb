package io.oncegate.client.http;

/** A part of a request that must be the same on a repeat with the same key. */
public enum FingerprintPart {
    /** The method, and fields that override it. */
    METHOD("method"),
    /** The path of the request, undecoded. */
    PATH("path"),
    /** The query of the request, undecoded. */
    QUERY("query"),
    /** The media type of the body. */
    CONTENT_TYPE("content-type"),
    /** The condition {@code If-Match}. */
    IF_MATCH("if-match"),
    /** The bytes of the body; a form in parts without its boundary. */
    BODY("body"),
    /** The JSON value of the body; its bytes if it is not JSON. */
    BODY_JSON("body");

    final String member;

    FingerprintPart(String member) {
        this.member = member;
    }
}
