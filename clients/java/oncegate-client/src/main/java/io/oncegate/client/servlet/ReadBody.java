package io.oncegate.client.servlet;

import io.oncegate.client.http.Problem;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpServletRequest;
import java.io.IOException;

/**
 * The body of a request, read whole before the claim.
 *
 * @param bytes what was read, all of it if there is no problem
 * @param rest what may follow in a body that is too long, or null
 * @param problem the reason why it cannot be taken, or null
 */
record ReadBody(byte[] bytes, ServletInputStream rest, Problem problem) {
    private static final byte[] NONE = {};

    static ReadBody of(HttpServletRequest request, int most) throws IOException {
        long declared = request.getContentLengthLong();
        ServletInputStream in;
        try {
            in = request.getInputStream();
        } catch (IllegalStateException readAsText) {
            return notSeen("A layer before it has read the body as text.");
        }
        if (declared > most) {
            return new ReadBody(NONE, in, Problem.bodyTooLarge(most));
        }
        boolean isFramed = declared > 0 || request.getHeader("Transfer-Encoding") != null;
        if (isFramed && in.isFinished()) {
            return notSeen("A layer before it has read the body, such as a parser of forms.");
        }
        byte[] bytes;
        try {
            bytes = in.readNBytes(most + 1);
        } catch (IOException cut) {
            return new ReadBody(NONE, null, Problem.incomplete());
        }
        if (bytes.length > most) {
            return new ReadBody(bytes, in, Problem.bodyTooLarge(most));
        }
        if (bytes.length >= declared || new ServletHead(request).isCompressed()) {
            return new ReadBody(bytes, null, null);
        }
        // An upload that is cut off throws; an empty one had ended before.
        return bytes.length == 0
                ? notSeen("A layer before it has read the body, such as a parser of forms.")
                : new ReadBody(bytes, null, Problem.incomplete());
    }

    private static ReadBody notSeen(String why) {
        return new ReadBody(NONE, null, Problem.bodyNotSeen(why));
    }

    /** Returns true if a handler could read the body after it was looked at. */
    boolean canBeRead() {
        return rest != null;
    }
}
