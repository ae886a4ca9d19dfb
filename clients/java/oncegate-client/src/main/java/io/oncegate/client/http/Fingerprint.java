package io.oncegate.client.http;

import io.oncegate.client.JsonText;
import io.oncegate.client.NotCanonical;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The fingerprint of a request: the same members as those of the proxy. */
final class Fingerprint {
    private static final Set<String> METHOD_OVERRIDES =
            Set.of("x-http-method-override", "x-http-method", "x-method-override");

    private Fingerprint() {}

    static Map<String, Object> of(Set<FingerprintPart> parts, RequestHead head, byte[] body) {
        Map<String, Object> members = new TreeMap<>();
        byte[] form = Multipart.digest(head.lines("Content-Type"), body);
        for (FingerprintPart part : parts) {
            switch (part) {
                case METHOD -> method(head, members);
                case PATH -> members.put(part.member, head.path());
                case QUERY -> put(members, part.member, head.query());
                case CONTENT_TYPE ->
                        put(
                                members,
                                part.member,
                                form == null
                                        ? field(head.lines("Content-Type"))
                                        : "multipart/form-data");
                case IF_MATCH -> put(members, part.member, field(head.lines("If-Match")));
                case BODY, BODY_JSON ->
                        members.put(part.member, hex(form == null ? digest(part, body) : form));
            }
        }
        return members;
    }

    private static void method(RequestHead head, Map<String, Object> members) {
        members.put("method", head.method());
        for (String name : head.names()) {
            String lower = Fields.lower(name);
            if (METHOD_OVERRIDES.contains(lower.replace('_', '-'))) {
                put(members, lower, field(head.lines(name)));
            }
        }
    }

    private static void put(Map<String, Object> members, String name, String value) {
        if (value != null) {
            members.put(name, value);
        }
    }

    /** Returns the digest of a field's lines, in order; null without any. */
    private static String field(List<String> lines) {
        if (lines.isEmpty()) {
            return null;
        }
        MessageDigest digest = sha256();
        for (String line : lines) {
            byte[] bytes = line.getBytes(StandardCharsets.ISO_8859_1);
            digest.update(ByteBuffer.allocate(8).putLong(bytes.length).array());
            digest.update(bytes);
        }
        return hex(digest.digest());
    }

    private static byte[] digest(FingerprintPart part, byte[] body) {
        if (part == FingerprintPart.BODY_JSON) {
            try {
                CharBuffer text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body));
                String canonical = new JsonText(text.toString()).canonical();
                return sha256().digest(canonical.getBytes(StandardCharsets.UTF_8));
            } catch (CharacterCodingException | NotCanonical | IllegalArgumentException notJson) {
                // Compared by its bytes.
            }
        }
        return sha256().digest(body);
    }

    static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException("Every JDK has SHA-256", impossible);
        }
    }
}
