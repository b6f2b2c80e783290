package transship.server;

/** The errors of a batch's rows, cut short: every row may have one, and all of them together must not need more memory than results do. */
final class RowTexts {
    /** Longest error of one row, in characters. */
    private static final int MOST = 4096;
    /** Once the errors of a batch have this many characters together, each further one has at most FEW. */
    private static final int MOST_IN_ALL = 1 << 20;
    private static final int FEW = 256;

    private int left = MOST_IN_ALL;

    /** The part of the next error that is reported, which is text that UTF-8 can hold. */
    String cut(String text) {
        int most = left > 0 ? MOST : FEW;
        String part = text.codePointCount(0, text.length()) > most ? text.substring(0, text.offsetByCodePoints(0, most)) : text;
        left -= part.length();
        // A lone surrogate is no character.
        return new String(part.getBytes(java.nio.charset.StandardCharsets.UTF_8), java.nio.charset.StandardCharsets.UTF_8);
    }
}
