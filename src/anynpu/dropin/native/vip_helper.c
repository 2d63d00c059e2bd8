/* libVIPuser and libVIPhal: on a board they serve libVIPlite and libNBGlinker and have no vip_ call. Programs name them when they are
 * linked, so the files have to be there. */
__attribute__((used)) static const char version_text[] = ANYNPU_NAME " version: (anynpu)";
