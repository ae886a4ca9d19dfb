package io.oncegate.client.servlet;

import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletRequestEvent;
import jakarta.servlet.ServletRequestListener;

/** Ends the run of a request that the container answered itself, without a dispatch for errors. */
final class UnansweredErrors implements ServletRequestListener {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");
    private static final String ATTRIBUTE = UnansweredErrors.class.getName();

    static void register(ServletContext context) {
        if (context.getAttribute(ATTRIBUTE) != null) {
            return;
        }
        try {
            context.addListener(new UnansweredErrors());
            context.setAttribute(ATTRIBUTE, true);
        } catch (IllegalStateException | UnsupportedOperationException tooLate) {
            LOG.log(
                    System.Logger.Level.WARNING,
                    "The container takes no listener now, so the key of a request that is answered"
                            + " outside of the filter stays in progress for exchangeMax. Call"
                            + " IdempotencyFilter.listen(context) earlier, such as from a"
                            + " ServletContextInitializer ({0})",
                    tooLate.toString());
        }
    }

    @Override
    public void requestDestroyed(ServletRequestEvent event) {
        Exchange exchange = Exchange.of(event.getServletRequest());
        if (exchange != null) {
            exchange.destroyed();
        }
    }
}
