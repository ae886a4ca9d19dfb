package io.oncegate.client.http;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/** Forms in parts ({@code multipart/form-data}, RFC 7578), whose boundary is new for each try. */
public final class Multipart {
    private static final int BOUNDARY_MAX = 70;
    private static final byte[] END = {'-', '-'};
    private static final byte[] LINE = {'\r', '\n'};

    private Multipart() {}

    /**
     * Returns the parts of a form, each with its head; null if the body is no form, or one that
     * readers could understand differently.
     */
    static List<byte[]> parts(List<String> contentType, byte[] body) {
        return parts(contentType, body, true);
    }

    /**
     * Returns the parts of a form as containers read it, with something before and after it or not;
     * null if it is no form.
     */
    public static List<byte[]> read(List<String> contentType, byte[] body) {
        return parts(contentType, body, false);
    }

    private static List<byte[]> parts(List<String> contentType, byte[] body, boolean isExact) {
        String boundary = contentType.size() == 1 ? boundary(contentType.get(0), isExact) : null;
        if (boundary == null) {
            return null;
        }
        byte[] delimiter = ("\r\n--" + boundary).getBytes(StandardCharsets.ISO_8859_1);
        byte[] first = Arrays.copyOfRange(delimiter, 2, delimiter.length);
        int at = first.length;
        if (!startsWith(body, 0, first)) {
            int preamble = isExact ? -1 : find(body, 0, delimiter);
            if (preamble < 0) {
                return null;
            }
            at = preamble + delimiter.length;
        }
        List<byte[]> parts = new ArrayList<>();
        while (true) {
            if (startsWith(body, at, END)) {
                int rest = body.length - at - END.length;
                boolean ends = rest == 0 || (rest == 2 && startsWith(body, at + 2, LINE));
                return ends || !isExact ? parts : null;
            }
            // No line end is that of two delimiters: some readers see an empty part between them.
            int from = isExact ? at : at + 2;
            int end = startsWith(body, at, LINE) ? find(body, from, delimiter) : -1;
            if (end <= at) {
                return null;
            }
            parts.add(Arrays.copyOfRange(body, at + 2, end));
            at = end + delimiter.length;
        }
    }

    private static String boundary(String contentType, boolean isExact) {
        String[] parameters = contentType.split(";");
        String type = parameters[0].strip().toLowerCase(Locale.ROOT);
        // Tomcat reads parts of other kinds, too, such as multipart/mixed, and Spring asks for
        // them.
        if (isExact ? !type.equals("multipart/form-data") : !type.startsWith("multipart/")) {
            return null;
        }
        String boundary = null;
        for (int at = 1; at < parameters.length; at++) {
            String[] pair = parameters[at].split("=", 2);
            String name = pair[0].strip().toLowerCase(Locale.ROOT);
            if (pair.length == 2 && name.startsWith("boundary")) {
                // boundary* and boundary*0 (RFC 2231) are boundaries to some readers.
                if (isExact && (boundary != null || !name.equals("boundary"))) {
                    return null;
                }
                if (!name.equals("boundary")) {
                    continue;
                }
                boundary = pair[1].strip().replaceAll("^\"+|\"+$", "");
            }
        }
        boolean usable =
                boundary != null
                        && !boundary.isEmpty()
                        && boundary.length() <= BOUNDARY_MAX
                        // Some readers end the type at a comma.
                        && !(isExact && boundary.indexOf(',') >= 0);
        return usable ? boundary : null;
    }

    private static boolean startsWith(byte[] body, int at, byte[] wanted) {
        return at + wanted.length <= body.length
                && Arrays.equals(body, at, at + wanted.length, wanted, 0, wanted.length);
    }

    private static int find(byte[] body, int from, byte[] wanted) {
        for (int at = from; at + wanted.length <= body.length; at++) {
            if (body[at] == wanted[0] && startsWith(body, at, wanted)) {
                return at;
            }
        }
        return -1;
    }
}
