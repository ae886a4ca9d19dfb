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
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The fingerprint of a request: the same members as those of the proxy. */
final class Fingerprint {
    private static final Set<String> METHOD_OVERRIDES =
            Set.of("x-http-method-override", "x-http-method", "x-method-override");
    private static final Pattern ESCAPE = Pattern.compile("%([0-9a-fA-F]{2})");

    private Fingerprint() {}

    static Map<String, Object> of(Set<FingerprintPart> parts, RequestHead head, byte[] body) {
        Map<String, Object> members = new TreeMap<>();
        byte[] form = formDigest(head.lines("Content-Type"), body);
        for (FingerprintPart part : parts) {
            Object value =
                    switch (part) {
                        case METHOD -> head.method();
                        case PATH -> spelled(head.path());
                        case QUERY -> head.query() == null ? null : spelled(head.query());
                        case CONTENT_TYPE ->
                                form == null
                                        ? field(smallLetters(head.lines("Content-Type")))
                                        : "multipart/form-data";
                        case IF_MATCH -> field(head.lines("If-Match"));
                        case BODY, BODY_JSON -> hex(form == null ? digest(part, body) : form);
                    };
            members.put(part.member, value);
        }
        if (parts.contains(FingerprintPart.METHOD)) {
            for (String name : head.names()) {
                String lower = Fields.lower(name);
                if (isMethodOverride(name)) {
                    members.put(lower, field(head.lines(name)));
                }
            }
        }
        return members;
    }

    /** Returns true if a framework may take the request for one of another method. */
    static boolean overridesMethod(RequestHead head) {
        for (String name : head.names()) {
            if (isMethodOverride(name)) {
                return true;
            }
        }
        return false;
    }

    private static boolean isMethodOverride(String name) {
        return METHOD_OVERRIDES.contains(Fields.lower(name).replace('_', '-'));
    }

    /**
     * Returns a path or query in its common spelling: unreserved characters as they are, the digits
     * of other escapes in capitals.
     */
    private static String spelled(String raw) {
        Matcher escape = ESCAPE.matcher(raw);
        return escape.replaceAll(
                found -> {
                    char unit = (char) Integer.parseInt(found.group(1), 16);
                    boolean isPlain =
                            (unit < 0x80 && Character.isLetterOrDigit(unit))
                                    || "-._~".indexOf(unit) >= 0;
                    return isPlain
                            ? Character.toString(unit)
                            : found.group().toUpperCase(Locale.ROOT);
                });
    }

    /** Only A to Z have small letters here: other characters are bytes. */
    private static List<String> smallLetters(List<String> lines) {
        return lines.stream()
                .map(
                        line -> {
                            var small = new StringBuilder(line);
                            for (int at = 0; at < small.length(); at++) {
                                char unit = small.charAt(at);
                                if (unit >= 'A' && unit <= 'Z') {
                                    small.setCharAt(at, (char) (unit + ('a' - 'A')));
                                }
                            }
                            return small.toString();
                        })
                .toList();
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

    /** Returns the digest of the parts of a form; null if the body is no form. */
    private static byte[] formDigest(List<String> contentType, byte[] body) {
        List<byte[]> parts = Multipart.parts(contentType, body);
        if (parts == null) {
            return null;
        }
        MessageDigest digest = sha256();
        for (byte[] part : parts) {
            digest.update(ByteBuffer.allocate(8).putLong(part.length).array());
            digest.update(part);
        }
        return digest.digest();
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
