package io.oncegate.client.servlet;

import jakarta.servlet.ServletException;
import jakarta.servlet.http.Part;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** One part of a form, in memory. */
final class FormPart implements Part {
    private static final Pattern PARAMETER =
            Pattern.compile(";\\s*([A-Za-z*]+)\\s*=\\s*(?:\"((?:[^\"\\\\]|\\\\.)*)\"|([^;\\s]+))");
    private static final String DISPOSITION = "Content-Disposition";

    private final Map<String, List<String>> fields = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    private final byte[] content;

    FormPart(byte[] part) throws ServletException {
        // A head in UTF-8: browsers write file names so.
        int end = headEnd(part);
        if (end < 0) {
            throw new ServletException("A part of the form has no head");
        }
        for (String line : new String(part, 0, end, StandardCharsets.UTF_8).split("\r\n")) {
            int colon = line.indexOf(':');
            if (colon > 0) {
                fields.computeIfAbsent(line.substring(0, colon).strip(), name -> new ArrayList<>())
                        .add(line.substring(colon + 1).strip());
            }
        }
        if (parameter("name") == null) {
            throw new ServletException("A part of the form has no name");
        }
        int begin = Math.min(part.length, end + (end == 0 ? 2 : 4));
        content = java.util.Arrays.copyOfRange(part, begin, part.length);
    }

    private static int headEnd(byte[] part) {
        if (part.length >= 2 && part[0] == '\r' && part[1] == '\n') {
            return 0;
        }
        for (int at = 0; at + 4 <= part.length; at++) {
            if (part[at] == '\r'
                    && part[at + 1] == '\n'
                    && part[at + 2] == '\r'
                    && part[at + 3] == '\n') {
                return at;
            }
        }
        return -1;
    }

    private String parameter(String name) {
        String disposition = getHeader(DISPOSITION);
        Matcher parameters = PARAMETER.matcher(disposition == null ? "" : disposition);
        while (parameters.find()) {
            if (parameters.group(1).equalsIgnoreCase(name)) {
                return parameters.group(2) == null
                        ? parameters.group(3)
                        : parameters.group(2).replaceAll("\\\\(.)", "$1");
            }
        }
        return null;
    }

    String text(Charset charset) {
        return new String(content, charset);
    }

    @Override
    public InputStream getInputStream() {
        return new ByteArrayInputStream(content);
    }

    @Override
    public String getContentType() {
        return getHeader("Content-Type");
    }

    @Override
    public String getName() {
        return parameter("name");
    }

    @Override
    public String getSubmittedFileName() {
        return parameter("filename");
    }

    @Override
    public long getSize() {
        return content.length;
    }

    @Override
    public void write(String fileName) throws IOException {
        Files.write(Path.of(fileName), content);
    }

    /** Nothing is on disk. */
    @Override
    public void delete() {}

    @Override
    public String getHeader(String name) {
        List<String> values = fields.get(name);
        return values == null ? null : values.get(0);
    }

    @Override
    public Collection<String> getHeaders(String name) {
        return fields.getOrDefault(name, List.of());
    }

    @Override
    public Collection<String> getHeaderNames() {
        return fields.keySet();
    }
}
